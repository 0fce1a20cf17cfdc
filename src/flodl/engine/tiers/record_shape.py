"""Records one more shape for a runner, and compares the recording with eager."""

from __future__ import annotations

import torch

from ..capture.runner import RecordedRunner
from ..errors import NotCapturable
from ..guards.recompile import GuardFailed
from ..program.outcome import Outcome
from ..program.program import StepBody
from ..program.runner import EagerRunner, Micro
from ..settings import Tier
from ..state.copies import free_memory
from ..state.snapshot import Snapshot
from ..verify.candidate import compile_by_running, learn
from ..verify.distances import WindowOutputs
from ..verify.gradients import Gradients, copy_gradients
from ..verify.verdict import Verdict

NO_MEMORY = "there is not enough memory to record it"


def record_another(
    runner: RecordedRunner, eager: EagerRunner, body: StepBody, micro: Micro
) -> tuple[Outcome | None, str | None]:
    """Run a whole step eagerly and record it for its shape; the state is as eager left it.

    A runner of a compiled step is compiled for the shape first. Return the outcome (None if memory ran out
    before there was one) and the reason if this shape cannot be recorded. After a step that was skipped as
    not finite, nothing is recorded.
    """
    before: Snapshot | None = None
    grads: Gradients = []
    try:
        before = Snapshot(body, micro.batch, body.side_effects.written)
        outcome = eager.run_without_update(micro)
        if not runner.update_inside:
            grads = copy_gradients(body)
    except torch.OutOfMemoryError:
        if before is not None:
            before.restore()
        return None, NO_MEMORY
    body.update(micro.correction, samples=micro.window_samples)
    body.undo.detach_carried()
    if bool(body.bad):
        return outcome, None
    try:
        if runner.update_inside:
            grads = copy_gradients(body)
        after = Snapshot(body, micro.batch, body.side_effects.written)
    except torch.OutOfMemoryError:
        return outcome, NO_MEMORY
    if before.reachable.written_uncopied(after.reachable):
        return outcome, "it writes to different large tensors than before"
    if replaced := before.first_replaced(after):
        return outcome, f"it replaces {replaced}"
    before.prepare_recording(after, body)
    before.reachable.drop_unchanged(after.reachable)
    try:
        with body.progress.preserved():
            difference = _record(
                runner, body, micro, before, after, WindowOutputs(grads, dict(outcome.values))
            )
    except (NotCapturable, GuardFailed) as error:
        difference = str(error)
    except torch.OutOfMemoryError:
        difference = NO_MEMORY
    finally:
        after.restore()
    del before, after
    free_memory(body.device)
    if difference is not None:
        runner.forget(micro)
    return outcome, difference


def _record(
    runner: RecordedRunner,
    body: StepBody,
    micro: Micro,
    before: Snapshot,
    after: Snapshot,
    eager: WindowOutputs,
) -> str | None:
    """Record a shape and replay it once; return how the replay differs from eager."""
    tier: Tier = "compiled" if runner.body.is_compiled else "captured"
    if runner.body.is_compiled:
        compile_by_running(runner.body, [micro], before, updates=runner.update_inside)
    before.restore()
    learn(runner, micro, before, updates=runner.update_inside)
    before.restore()
    values = runner.run_without_update(micro).values
    runner.show_grads()
    verdict = Verdict(tier, body, updates=runner.update_inside)
    difference = verdict.judge(runner, after, eager, values, before, [micro])
    if difference is None and verdict.is_doubtful:
        difference = "its gradients are further from eager's than usual"
    return difference

"""Recording a further shape of batch, while training goes on."""

from __future__ import annotations

import torch

from .body import Outcome, StepBody
from .capture import NotCapturable
from .comparison import gradients, same_gradients
from .recorded import RecordedRunner
from .runners import EagerRunner, Micro
from .snapshot import Snapshot

NO_MEMORY = "there is no memory left to record it in"


def record_another(
    runner: RecordedRunner, eager: EagerRunner, body: StepBody, micro: Micro
) -> tuple[Outcome | None, str | None]:
    """Run a whole step eagerly and record it for its shape; the state is as eager left it.

    Gives the outcome, none where memory ran out before there was one, and the reason where such a shape
    cannot be captured. A step that was skipped as not finite says nothing, and nothing is recorded.
    """
    before: Snapshot | None = None
    try:
        before = Snapshot(body, micro.batch, body.written)
        outcome = eager.run_without_update(micro)
        eager_grads = gradients(body)
    except torch.OutOfMemoryError:
        if before is not None:
            before.restore()
        return None, NO_MEMORY
    body.update(micro.correction)
    if bool(body.bad):
        return outcome, None
    after = Snapshot(body, micro.batch, body.written)
    if before.around.written_without_copy(after.around):
        return outcome, "it writes to other large tensors than before"
    if replaced := before.first_replaced(after):
        return outcome, f"it replaces {replaced}"
    before.lets_go(after, body)
    before.around.narrow(after.around)
    try:
        before.restore()
        runner.learn(micro)
        before.restore()
        runner.run_without_update(micro)
        difference = after.first_difference(Snapshot(body), updated=runner.update_inside)
        if difference is None and not runner.update_inside:
            runner.show_grads()
            difference = None if same_gradients(eager_grads, gradients(body)) else "its gradients differ"
    except NotCapturable as error:
        difference = str(error)
    except torch.OutOfMemoryError:
        difference = NO_MEMORY
    finally:
        after.restore()
    if difference is not None:
        runner.forget(micro)
    return outcome, difference

"""Trying a faster tier on real batches: run eagerly, run again on the candidate, compare, leave no trace."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..batch.signature import Signature, opaque_part
from ..batch.tree import static_copy, tensors_of
from ..capture.recording import rehearse
from ..capture.runner import RecordedRunner, Runner
from ..compile.memory_format import Layout, LayoutChoice, candidate_layouts, pick_fastest
from ..compile.runner import CompiledRunner, compile_program
from ..device.error_text import error_summary
from ..device.timing import now_s
from ..errors import NotCapturable
from ..guards.cheap import Footing
from ..guards.recompile import GuardFailed
from ..optimizer.prepare import Readiness
from ..program.program import Outcome, StepBody
from ..program.runner import EagerRunner, Micro
from ..settings import Tier
from ..state.snapshot import Snapshot
from .distances import Values, WindowOutputs
from .gradients import Gradients, copy_gradients
from .verdict import Verdict, rerun, set_gradients

# Windows in a row that say nothing, not finite or of another shape, before a trial is given up.
MOST_SKIPPED = 50
# How many models of one class a process may compile where torch cuts their code in pieces.
MOST_MODELS = 256


class Refused(Exception):
    """The candidate may not stand in for eager; says why."""


class ChangedDuringTrial(Refused):
    """Something changed while the candidate was tried; it says nothing against trying again."""


class Trial:
    """One candidate on its way up; the training itself goes on as eager has it.

    Of what the candidate runs a second time everything is put back. An update is run a second time only
    where it is part of a recording, which only torch's own optimizers can be: what others keep, and where,
    nobody knows.
    """

    def __init__(
        self,
        tier: Tier,
        body: StepBody,
        readiness: Readiness,
        *,
        tune: str | None = None,
        layout: LayoutChoice | None = None,
    ) -> None:
        self.tier = tier
        self.cost_s = 0.0
        self._body = body
        self._tune = tune
        # Known beforehand where the process that compiled has measured it.
        self._layout = layout
        self._readiness = readiness
        self._eager = EagerRunner(body)
        self._candidate: Runner | None = None
        self._footing: Footing | None = None
        self._window: list[Micro] = []
        self._given: list[Any] = []
        self._before: Snapshot | None = None
        # Whether the candidate's update is part of it, and eager's gradients from before the update if not.
        self._updates = body.device.type == "cuda" and readiness.capturable
        self._added_up: Gradients = []
        # What the real run of the last micro-batch named.
        self._values: Values = {}
        self._skipped = 0
        self._shapes: list[Signature] = []
        # What the last batch held that only is the same where it is the very same object.
        self._stranger: Any = None
        self._verdict = Verdict(tier, body, updates=self._updates)

    def watch(self, micro: Micro) -> Outcome:
        """Run eagerly and remember the window, to run it again on the candidate and compare."""
        try:
            outcome = self._watch(micro)
            self._values = outcome.values
            return outcome
        except BaseException:
            # What is left of the window says nothing.
            self._before = None
            raise

    def _watch(self, micro: Micro) -> Outcome:
        if micro.opens:
            if changed := self._what_changed():
                raise ChangedDuringTrial(
                    f"{changed} while the {self.tier} step was being compared with eager"
                )
            self._window, self._given = [], []
            self._before = Snapshot(self._body, micro.batch, self._body.written)
            if self._before.reachable.iterators:
                kind = type(self._before.reachable.iterators[0]).__name__
                raise Refused(
                    f"the step cannot be {self.tier}: it reaches an iterator ({kind}), which cannot be read "
                    "a second time for the comparison; read it before the step and pass what it gives"
                )
        elif self._before is None:
            return self._real(micro)
        if any(leaf.grad_fn is not None for leaf in tensors_of(micro.batch)):
            raise Refused(
                f"the step cannot be {self.tier}: its batch was computed with gradients, which would reach "
                "what computed it once for every comparison, and never from a recording; compute it in the "
                "step function, or detach it"
            )
        # By the end of the window the caller may have written the next batch into the same tensors.
        kept = micro if micro.phase == "only" else replace(micro, batch=static_copy(micro.batch))
        self._window.append(kept)
        self._given.append(micro.batch)
        if self._candidate is not None or self._body.device.type != "cuda":
            return self._real(micro)
        if any(leaf.dim() == 0 and leaf.device.type == "cpu" for leaf in tensors_of(micro.batch)):
            raise Refused(
                f"the step cannot be {self.tier}: the batch holds one number on the CPU, "
                "which a recording would keep as it is; give a tensor on the device, or a plain number"
            )
        moment, added = Snapshot(self._body, micro.batch), None if micro.opens else copy_gradients(self._body)
        try:
            outcome = rehearse(lambda: self._eager.run_without_update(micro))
            if micro.closes and self._updates and not self._body.begins_state():
                rehearse(lambda: self._close(micro))
                return outcome
        except (NotCapturable, torch.OutOfMemoryError) as error:
            moment.restore()
            if added is not None:
                set_gradients(self._body, added)
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise Refused(f"the step cannot be {self.tier}: {error}") from error
        if micro.closes:
            self._close(micro)
        return outcome

    def _what_changed(self) -> str | None:
        """Name what is no longer as it was when the candidate was made."""
        changed = self._footing.what_changed() if self._footing is not None else None
        return changed or (self._candidate.what_changed() if self._candidate is not None else None)

    def _real(self, micro: Micro) -> Outcome:
        """Run what counts."""
        outcome = self._eager.run_without_update(micro)
        if micro.closes:
            self._close(micro)
        return outcome

    def _close(self, micro: Micro) -> None:
        if self._body.begins_state():
            # A part that was not used before. What its first update makes cannot be taken back.
            self._before = None
        elif not self._updates:
            try:
                self._added_up = copy_gradients(self._body)
            except torch.OutOfMemoryError:
                # The window is good; there is no room to compare it.
                self._before = None
        self._body.update(micro.correction)

    def end_window(self) -> Runner | None:
        """Compare where a window has ended; gives the candidate once it has passed often enough."""
        before, window = self._before, self._window
        self._before, self._window = None, []
        if before is None or not window[-1].closes:
            # A window that was flushed before it was full says nothing about the others.
            return None
        after = Snapshot(self._body, self._given, self._body.written)
        if self._says_nothing(before, after, [micro.shape for micro in window], window):
            return None
        grads = copy_gradients(self._body) if self._updates else self._added_up
        if self._body.device.type == "cuda":
            self._refuse_what_recordings_break(before, after)
        before.reachable.drop_unchanged(after.reachable)
        is_new = self._candidate is None
        try:
            before.restore()
            candidate = self._prepared(window, before)
            values = rerun(candidate, window, updates=self._updates)
            candidate.show_grads()
            real = WindowOutputs(grads, self._values)
            difference = self._verdict.judge(after, real, values, before, window)
        except (GuardFailed, NotCapturable) as error:
            if isinstance(error, GuardFailed) and not is_new:
                # Something that it rests on has changed since the last window.
                raise ChangedDuringTrial(f"{error} while the {self.tier} step was being compared") from error
            raise Refused(f"the step cannot be {self.tier}: {error}") from error
        finally:
            after.restore()
        if difference is not None:
            raise Refused(f"the {self.tier} step differs from eager: {difference}")
        if not self._verdict.is_accepted:
            return None
        candidate.show_grads()
        return candidate

    def _says_nothing(
        self, before: Snapshot, after: Snapshot, shapes: list[Signature], window: list[Micro]
    ) -> bool:
        """Say whether a window is no ground for a comparison; raises where that has gone on for too long."""
        why = "were not finite" if bool(self._body.bad) else ""
        if any(micro.ragged for micro in window) or (self._shapes and shapes != self._shapes):
            why = "had another shape"
            self._refuse_strangers(window[0])
        if written := before.reachable.written_uncopied(after.reachable):
            # Only now it is known that they have to be copied before a window.
            self._body.written += written
            why = "wrote to other large tensors than those before"
        if not why:
            self._skipped, self._shapes = 0, shapes
            self._stranger = opaque_part(window[0].batch)
            return False
        self._skipped += 1
        if self._skipped > MOST_SKIPPED:
            raise Refused(f"the step cannot be {self.tier}: {self._skipped} updates in a row {why}")
        return True

    def _refuse_strangers(self, micro: Micro) -> None:
        """Refuse batches that are of another form only because something in them is another object."""
        part, known = opaque_part(micro.batch), self._stranger
        self._stranger = part
        if part is None or known is None or part is known:
            return
        kind = "nested tensor" if isinstance(part, torch.Tensor) else f"object of class {type(part).__name__}"
        raise Refused(
            f"the step cannot be {self.tier}: each batch holds another {kind}, which is not looked into; "
            "give its tensors in a tuple, list, dict or dataclass"
        )

    def _refuse_what_recordings_break(self, before: Snapshot, after: Snapshot) -> None:
        """Refuse a step that replaces what a recording would go on reading, or hold on to its history."""
        replaced = before.first_replaced(after)
        if replaced is not None:
            raise Refused(
                f"the step cannot be {self.tier}: it replaces {replaced} "
                "by another tensor, which a recording would not read back; write into it with copy_()"
            )
        # Between the micro-batches of a window, the caller may have filled the same tensors again.
        given = {id(leaf) for leaf in tensors_of(self._given[0])} if len(self._given) == 1 else set()
        if any(id(tensor) in given for tensor in before.reachable.written(after.reachable)):
            raise Refused(
                f"the step cannot be {self.tier}: it writes into its batch or leaves a gradient there, and a "
                "recording works on a copy; clone what the step changes, and give what it makes as a value"
            )
        before.prepare_recording(after, self._body)

    @property
    def summary(self) -> str:
        """How close the candidate is to eager, and how it came to be what it is."""
        runner = self._candidate
        outside = isinstance(runner, RecordedRunner) and not runner.update_inside
        words = f"; the update stays outside: {self._readiness.reason}" if outside else ""
        if isinstance(runner, RecordedRunner) and runner.draws_on_host:
            words += "; random numbers that the step draws on the CPU stay as they were recorded"
        layout = f"; {self._layout.summary}" if self._layout is not None and self.tier == "compiled" else ""
        return f"{self._verdict.summary}{layout}{words}"

    def _prepared(self, window: list[Micro], before: Snapshot) -> Runner:
        """Give the candidate with everything prepared that the window needs, and the state as before."""
        started = time.perf_counter()
        if self._candidate is None:
            self._footing = Footing(self._body)
            self._candidate = self._new_candidate(window, before)
        self._learn(self._candidate, window, before)
        self.cost_s += time.perf_counter() - started
        return self._candidate

    def _learn(self, candidate: Runner, window: list[Micro], before: Snapshot) -> None:
        for micro in window:
            candidate.learn(micro)
            before.restore()

    def _new_candidate(self, window: list[Micro], before: Snapshot) -> Runner:
        """Make the candidate; where images can lie in memory in two ways, the one measured faster.

        Where that is known, only the one is made.
        """
        if self.tier != "compiled":
            return self._runner(self._body)
        candidates: dict[Layout | None, Runner] = {}
        layouts = candidate_layouts(self._body) if self._layout is None else (self._layout.layout,)
        bodies = compile_program(self._body, tune=self._tune, layouts=layouts)
        for layout, body in bodies.items():
            try:
                self._compile(body, window, before)
                candidates[layout] = self._runner(body)
                before.restore()
                self._learn(candidates[layout], window, before)
            except (NotCapturable, GuardFailed):
                candidates.pop(layout, None)
                if layout == list(bodies)[-1] and not candidates:
                    raise
        turns = {layout: partial(self._time, r, window, before) for layout, r in candidates.items()}
        measured = pick_fastest(turns)
        before.restore()
        if measured.times_s:
            self._layout = measured
        return candidates[measured.layout]

    def _runner(self, body: StepBody) -> Runner:
        if self._body.device.type != "cuda":
            return CompiledRunner(body)
        return RecordedRunner(body, update_inside=self._readiness.capturable)

    def _time(self, runner: Runner, window: list[Micro], before: Snapshot) -> float:
        before.restore()
        started = now_s(self._body.device)
        rerun(runner, window, updates=self._updates)
        return (now_s(self._body.device) - started) / len(window)

    def _compile(self, body: StepBody, window: list[Micro], before: Snapshot) -> None:
        """Compile a body with fused kernels by running the window."""
        from torch._dynamo.utils import counters

        breaks = sum(counters["graph_break"].values())
        try:
            with warnings.catch_warnings(), torch._dynamo.config.patch(_compiled_here()):
                # Advice to those who compile by hand; what the model has to say, it has said in eager steps.
                warnings.simplefilter("ignore")
                # Twice: what the first run compiles, the second may still tune.
                for _ in range(2):
                    before.restore()
                    rerun(EagerRunner(body), window, updates=self._updates)
        except Exception as error:
            told = error_summary(error)
            raise NotCapturable(f"torch's compiler failed: {told}") from error
        body.is_split = sum(counters["graph_break"].values()) > breaks


def _compiled_here() -> dict[str, Any]:
    """Give how torch's compiler is set while training waits for it.

    Code that it has compiled too often already would run as it is, which nobody would notice; and a process
    may train many models of one class. What compiling leaves behind, Python collects when it does so anyway.
    """
    limits = {"recompile_limit": MOST_MODELS, "accumulated_recompile_limit": 4 * MOST_MODELS}
    wanted = {"fail_on_recompile_limit_hit": True, "run_gc_after_compile": False, **limits}
    return {name: value for name, value in wanted.items() if hasattr(torch._dynamo.config, name)}

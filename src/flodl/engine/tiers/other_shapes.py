"""Batches whose shape differs from the one that a tier was prepared for: counted, recorded, replayed."""

from __future__ import annotations

from ..batch.signature import Signature
from ..capture.runner import RecordedRunner, Runner
from ..device.timing import now_s
from ..program.outcome import Outcome
from ..program.program import StepBody
from ..program.runner import EagerRunner, Micro, Phase
from ..report import Cause, Journal
from .compiled_shapes import CompiledShapes
from .record_shape import record_another

SEEN_BEFORE_RECORDING = 3
MAX_CAPTURES = 8
# A number in the batch that changes in every step gives every step its own signature; keep the latest.
MAX_SEEN = 256
# Consecutive windows of one other shape before the step is compiled for it.
ANOTHER_SHAPE = 8


class OtherShapes:
    """Handles batches that the current runner does not know; there are at most eight recordings in total.

    A captured step is recorded for them too. Next to a compiled step they are first captured by a separate
    runner; the step is compiled for those that occur often.
    """

    def __init__(self, body: StepBody, eager: EagerRunner, journal: Journal) -> None:
        self._body = body
        self._eager = eager
        self._journal = journal
        # How often each of the latest other shapes has occurred.
        self.seen: dict[Signature, int] = {}
        self._latest: Signature | None = None
        self._in_a_row = 0
        # Replays recordings of the uncompiled step, next to a compiled one.
        self.side_runner: RecordedRunner | None = None
        self.compiled = CompiledShapes(body, journal)

    @property
    def captures(self) -> int:
        """How many recordings there are besides those of the current runner."""
        return 0 if self.side_runner is None else self.side_runner.captures

    def begin(self, captured: RecordedRunner | None = None) -> None:
        """Start again with a new runner, and keep the given recordings of the one before."""
        self.usual_again()
        self._drop()
        self.side_runner = captured
        self.compiled.begin()

    def leave_to(self, runner: Runner) -> None:
        """Drop recordings for shapes that the runner, which stays, has too."""
        if self.side_runner is None or not isinstance(runner, RecordedRunner):
            return
        now_s(self._body.device)  # replays that still run read what the recordings hold
        self.side_runner.forget_shapes_of(runner)
        if not self.side_runner.captures:
            self.side_runner = None

    def usual_again(self) -> None:
        """Note that the runner knew a batch."""
        self._latest, self._in_a_row = None, 0

    def stays(self, micro: Micro) -> bool:
        """Return whether enough consecutive batches had one other shape for it to be the usual one now."""
        if micro.signature != self._latest:
            self._latest, self._in_a_row = micro.signature, 0
        self._in_a_row += 1
        return self._in_a_row >= ANOTHER_SHAPE

    def run(self, micro: Micro, runner: Runner, step: int) -> Outcome | None:
        """Replay or record a micro-batch that the runner does not know; return None to run it eagerly."""
        if self.side_runner is not None and self.side_runner.what_changed():
            self._drop()
        carried = self._body.undo.carried
        if carried is not None and not carried.is_kept(micro.carried):
            reason = (
                "a batch that starts without carried values, as after reset_state(), or changes their shape "
                "runs eagerly"
            )
            self._journal.add(step, "eager", Cause.OTHER_SHAPE, reason)
            return None
        if (outcome := self._compiled(micro, runner, step)) is not None:
            return outcome
        if (outcome := self._replayed(micro, step)) is not None:
            return outcome
        if micro.ragged:
            self._journal.add(step, "eager", Cause.RAGGED_BATCH, "a ragged last batch runs eagerly")
            return None
        may_record = isinstance(runner, RecordedRunner) and micro.phase is Phase.ONLY
        if not may_record or self.seen.get(micro.signature, 0) != SEEN_BEFORE_RECORDING:
            prepared = "recorded" if isinstance(runner, RecordedRunner) else "compiled"
            reason = f"a batch of a different shape than the {prepared} one runs eagerly"
            self._journal.add(step, "eager", Cause.OTHER_SHAPE, reason)
            return None
        if runner.captures + self.captures >= MAX_CAPTURES:
            reason = f"{MAX_CAPTURES} shapes are recorded; others run eagerly"
            self._journal.add(step, "eager", Cause.TOO_MANY_SHAPES, reason)
            return None
        assert isinstance(runner, RecordedRunner)
        return self._recorded(micro, self._exact(runner), step)

    def _compiled(self, micro: Micro, runner: Runner, step: int) -> Outcome | None:
        """Count a shape; run a step that compiles it if it occurs often, otherwise return None."""
        if micro.ragged or not isinstance(runner, RecordedRunner) or micro.phase is not Phase.ONLY:
            return None
        count = self._count(micro.signature)
        if not runner.body.is_compiled or not self.compiled.is_due(micro, count, step):
            return None
        outcome, _ = self.compiled.record(runner, self._eager, micro, step)
        if runner.fits(micro):
            self.leave_to(runner)
        return outcome

    def _replayed(self, micro: Micro, step: int) -> Outcome | None:
        """Replay what was captured next to the compiled step."""
        if self.side_runner is None or micro.phase is not Phase.ONLY:
            return None
        if not self.side_runner.fits(micro):
            return None
        reason = "a batch of a different shape than the compiled one is replayed"
        self._journal.add(step, "captured", Cause.OTHER_SHAPE, reason)
        return self.side_runner.run(micro)

    def _recorded(self, micro: Micro, runner: RecordedRunner, step: int) -> Outcome | None:
        """Run eagerly, and record."""
        outcome, why_not = record_another(runner, self._eager, self._body, micro)
        if why_not is not None:
            reason = f"a batch of a different shape cannot be captured: {why_not}"
            self._journal.add(step, "eager", Cause.REFUSED, reason)
        elif outcome is not None and not runner.fits(micro):
            # Not finite: try the next one.
            self.seen[micro.signature] -= 1
        return outcome

    def _exact(self, runner: RecordedRunner) -> RecordedRunner:
        """Return the runner that records what eager does bit for bit: this one unless it is compiled."""
        if not runner.body.is_compiled:
            return runner
        if self.side_runner is None:
            self.side_runner = RecordedRunner(
                self._body,
                update_inside=runner.update_inside,
                update_apart=runner.update_program is not None,
            )
        return self.side_runner

    def _count(self, shape: Signature) -> int:
        """Return how often a shape has occurred by now."""
        count = self.seen.pop(shape, 0) + 1
        self.seen[shape] = count
        if len(self.seen) > MAX_SEEN:
            del self.seen[next(iter(self.seen))]
        return count

    def _drop(self) -> None:
        """Drop the recordings; their shapes may be recorded again."""
        self.seen.clear()
        if self.side_runner is not None:
            now_s(self._body.device)  # see above
            self.side_runner = None

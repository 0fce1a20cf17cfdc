"""From the eager tier upwards: try, promote, measure; and back down with a reason."""

from __future__ import annotations

import torch

from flodl.core import StepError

from .another import record_another
from .batch import Signature
from .body import Outcome, StepBody
from .compilation import COMPILE_AFTER_S, Compilation, NotCompiled
from .events import Journal
from .ground import Ground
from .history import cut_history
from .optimizer import Readiness, has_step_hooks, prepare
from .recorded import Lane, RecordedRunner, Runner
from .runners import GuardFailed, Micro
from .settings import StepSettings, Tier
from .splitting import SplittingRunner
from .timing import WindowTimes, now_s
from .trial import Disturbed, Refused, Trial

WARM_WINDOWS = 3
SEEN_BEFORE_RECORDING = 3
MAX_CAPTURES = 8
MAX_COMPILES = 4
MAX_DISTURBED = 4
# Windows in a row of another shape before the step is compiled for that one.
ANOTHER_SHAPE = 8
# Looking around takes up to a millisecond: done after so many steps, or so much time if that comes first.
LOOK_EVERY = 512
LOOK_EVERY_S = 0.5


class Ladder:
    """The tier that runs now, the one that is being tried, and those above."""

    def __init__(
        self, body: StepBody, settings: StepSettings, readiness: Readiness, journal: Journal
    ) -> None:
        self._body = body
        self._settings = settings
        self._readiness = readiness
        self._journal = journal
        self._eager = SplittingRunner(body)
        self._runner: Runner = self._eager
        self._below: tuple[Runner, Tier, str] | None = None
        self.tier: Tier = "eager"
        self._rungs, self.reason = self._rungs_ahead()
        self._trial: Trial | None = None
        self._compilation = Compilation(body, journal)
        self._windows = 0
        self._disturbed = 0
        # Whether part of this window ran as Python: its gradients are where Python keeps them.
        self._left_to_python = False
        self._ground: Ground | None = None
        self._looked_at = 0
        self._seen: dict[Signature, int] = {}
        self._in_a_row = 0
        self._times = WindowTimes(body.device)
        self.cost_s = 0.0
        self.num_compiles = 0
        # The short way for the next call, where a whole step is replayed like the last one.
        self.lane: Lane | None = None
        self._may_be_short = settings.accumulate == 1 and settings.tail != "pad"

    @property
    def captures(self) -> int:
        """How many recordings the present tier has."""
        return self._runner.captures

    @property
    def step_s(self) -> dict[str, float]:
        """The seconds of a step on each tier that was measured."""
        taken = {tier: self._times.of(tier) for tier in ("eager", "captured", "compiled")}
        return {tier: s / self._settings.accumulate for tier, s in taken.items() if s is not None}

    @property
    def why(self) -> str:
        """Why this tier runs, and what comes next."""
        return "; ".join(part for part in (self.reason, self._outlook()) if part)

    def _outlook(self) -> str:
        if self._trial is not None:
            return f"the {self._trial.tier} step is being compared with eager"
        if not self._rungs:
            return ""
        if self._rungs[0] != "compiled" or self._settings.tier != "auto":
            return "training has just begun; the next tier is tried after a few steps"
        if self._compilation.is_under_way:
            return "the step is being compiled in another process"
        after_s = COMPILE_AFTER_S[self._body.device.type]
        return f"once training has gone on for {after_s:g} s, the step is compiled in another process"

    def run(self, micro: Micro, step: int) -> Outcome:
        """Run a micro-batch on the best tier that fits it."""
        self.lane = None
        self._times.begin_call(self.tier, opens=micro.opens)
        try:
            return self._run(micro, step)
        finally:
            self._times.end_call()

    def _run(self, micro: Micro, step: int) -> Outcome:
        if micro.opens:
            self._left_to_python = False
            self._body.meet_optimizer_again()
            self._consider(micro, step)
        if self._trial is not None:
            self._times.spoil()
            return self._tried(micro, step)
        if self.tier == "eager" or self._left_to_python:
            return self._eagerly(micro, step)
        changed = self._runner.what_changed() or self._looked_around(step)
        if changed is None and not self._runner.fits(micro):
            self._times.spoil()
            changed = self._shape_that_stays(micro)
            if changed is None:
                return self._other_shape(micro, step)
        if changed is None:
            self._in_a_row = 0
            try:
                return self._runner.run(micro)
            except GuardFailed as failed:
                changed = str(failed)
        self._step_down(changed, step)
        return self._eagerly(micro, step)

    def show_grads(self) -> None:
        """Put the gradients of a half-filled window where the update looks for them."""
        if not self._left_to_python:
            self._runner.show_grads()

    def end_window(self, step: int) -> None:
        """Compare, promote and measure where a window has ended."""
        self._windows += 1
        if self._trial is None:
            ran = self._runner
            self._measure(step)
            # Another runner writes its values elsewhere, where nobody has looked yet.
            self.lane = self._short_way(step) if self._runner is ran else None
            return
        try:
            candidate = self._trial.end_window()
        except (Refused, torch.OutOfMemoryError) as refused:
            self._end_trial(refused, step)
            self._body.clear()
            return
        if candidate is not None:
            self._promote(candidate, self._trial, step)

    def close(self) -> None:
        """End what runs beside the training."""
        self._compilation.close()

    def _rungs_ahead(self) -> tuple[list[Tier], str]:
        """Give the tiers to try, in order, or none and the reason."""
        wanted, device = self._settings.tier, self._body.device.type
        if wanted == "eager":
            return [], "tier='eager' was asked for"
        if device == "cuda" and self._body.carriers:
            return [], "the model carries values from call to call, which a recording would not feed back"
        if wanted == "auto" and device not in COMPILE_AFTER_S:
            return [], f"the model is on {device}, where nothing faster than eager was tried yet"
        rungs: dict[str, list[Tier]] = {
            "auto": ["captured", "compiled"] if device == "cuda" else ["compiled"],
            "captured": ["captured"] if device == "cuda" else [],
            "compiled": ["compiled"],
        }
        return rungs[wanted], "" if rungs[wanted] else f"the model is on {device}, and capture needs CUDA"

    def _consider(self, micro: Micro, step: int) -> None:
        """Begin a trial of the next tier where the time has come."""
        if not self._rungs or self._trial is not None or self._windows < WARM_WINDOWS or micro.ragged:
            return
        if not self._body.has_updated:
            return
        if not self._times.knows(self.tier) and self._settings.tier == "auto":
            return
        target = self._rungs[0]
        if target == "compiled" and not self._may_compile(micro, step):
            return
        if self._readiness.capturable and has_step_hooks(self._body.optimizer):
            self._readiness = prepare(self._body.optimizer)
        if target == "compiled":
            self.num_compiles += 1
        self._trial = Trial(target, self._body, self._readiness, tune=self._compilation.tune)

    def _may_compile(self, micro: Micro, step: int) -> bool:
        try:
            return self._compilation.may_begin(micro, step)
        except NotCompiled as reason:
            self._rungs = []
            self._say_why_not(str(reason), step)
            return False

    def _say_why_not(self, reason: str, step: int) -> None:
        self._journal.say(step, self.tier, reason)
        self.reason = f"{self.reason}; {reason}" if self.reason else reason

    def _tried(self, micro: Micro, step: int) -> Outcome:
        assert self._trial is not None
        self._left_to_python = True
        if not micro.opens:
            self._body.note_statistics()
        try:
            return self._trial.watch(micro)
        except (Refused, torch.OutOfMemoryError) as refused:
            hard = isinstance(refused, Refused) and not isinstance(refused, Disturbed)
            if self._settings.strict and hard:
                raise StepError(f"{refused} With strict=True that is an error.") from refused
            self._end_trial(refused, step)
            if isinstance(refused, torch.OutOfMemoryError):
                if self._body.progress.touches and not micro.opens:
                    raise
                self._body.undo_forward(opens=micro.opens)
        return self._eagerly(micro, step)

    def _eagerly(self, micro: Micro, step: int) -> Outcome:
        if not micro.opens:
            self.show_grads()
        self._left_to_python = True
        return self._eager.run_and_tell(micro, self._journal, step)

    def _shape_that_stays(self, micro: Micro) -> str | None:
        """Say that batches have changed for good, where compiled code for their new shape may be had."""
        if self.tier != "compiled" or micro.ragged or not micro.opens:
            return None
        self._in_a_row += 1
        if self._in_a_row < ANOTHER_SHAPE or self.num_compiles >= MAX_COMPILES:
            return None
        self._in_a_row = 0
        return "batches have another shape now"

    def _other_shape(self, micro: Micro, step: int) -> Outcome:
        """Run a shape that was not recorded; one that keeps coming back is recorded too, up to a limit."""
        if micro.ragged:
            self._journal.say(step, "eager", "a ragged last batch runs eagerly")
            return self._eagerly(micro, step)
        seen = self._seen[micro.shape] = self._seen.get(micro.shape, 0) + 1
        exact = self.tier == "captured" and micro.phase == "only"
        if not exact or seen != SEEN_BEFORE_RECORDING:
            self._journal.say(step, "eager", "a batch of another shape than the recorded one runs eagerly")
            return self._eagerly(micro, step)
        if self.captures >= MAX_CAPTURES:
            self._journal.say(step, "eager", f"{MAX_CAPTURES} shapes are recorded; others run eagerly")
            return self._eagerly(micro, step)
        assert isinstance(self._runner, RecordedRunner)
        # Eager's outcome counts for this step, so the next one must not be told by what was replayed.
        self._left_to_python = True
        outcome, why_not = record_another(self._runner, self._eager, self._body, micro)
        if why_not is not None:
            self._journal.say(step, "eager", f"a batch of another shape cannot be captured: {why_not}")
        elif outcome is not None and not self._runner.fits(micro):
            self._seen[micro.shape] -= 1
        return self._eagerly(micro, step) if outcome is None else outcome

    def _ground_now(self) -> Ground:
        return Ground(self._body.model, with_tensors=self._body.device.type == "cuda")

    def _looked_around(self, step: int) -> str | None:
        """Name what changed in the model, every so many calls."""
        if self._ground is None or step - self._looked_at < self._look_every():
            return None
        self._looked_at = step
        if self._readiness.capturable and has_step_hooks(self._body.optimizer):
            # A replay would not call them.
            self._readiness = prepare(self._body.optimizer)
            return "the optimizer got step hooks"
        changed = self._ground.what_changed()
        return changed and f"{changed} (seen within {LOOK_EVERY} steps)"

    def _short_way(self, step: int) -> Lane | None:
        """Give the lane for the steps until the next look around, where they can be like the last one."""
        runner = self._runner
        if self._trial is not None or not self._times.knows(self.tier) or not self._may_be_short:
            return None
        if type(runner) is not RecordedRunner or self._left_to_python:
            return None
        return runner.lane(self._look_every() - (step - self._looked_at))

    def _look_every(self) -> int:
        """How many steps may pass between two looks around, of which the next tier also waits for one."""
        window_s = self._times.of(self.tier)
        if not window_s:
            return LOOK_EVERY
        return max(1, min(LOOK_EVERY, int(LOOK_EVERY_S * self._settings.accumulate / window_s)))

    def _promote(self, candidate: Runner, trial: Trial, step: int) -> None:
        cut_history(self._body.model, self._body.lasting)
        self._below = (self._runner, self.tier, self.reason)
        self._trial, self._ground, self._looked_at = None, self._ground_now(), step
        self.cost_s += trial.cost_s
        self._rungs = self._rungs[1:]
        self._times.forget(trial.tier)
        self._stand_on(candidate, trial.tier, trial.words, step)

    def _stand_on(self, runner: Runner, tier: Tier, reason: str, step: int) -> None:
        self._runner, self.tier, self.reason = runner, tier, reason
        self._times.spoil()
        self._journal.say(step, tier, reason, again=True)

    def _end_trial(self, refused: Refused | torch.OutOfMemoryError, step: int) -> None:
        """Try again later where something only came in between; else stay where we are."""
        if not isinstance(refused, Disturbed) or self._disturbed >= MAX_DISTURBED:
            self._give_up(_why_refused(refused), step)
            return
        self._disturbed += 1
        self._trial, self._windows = None, 0
        self._journal.say(step, self.tier, f"{refused}; it is tried again")

    def _give_up(self, reason: str, step: int) -> None:
        """Stay where we are; a compiled step that was asked for and cannot be had may still be captured."""
        failed, self._trial = self._trial, None
        self._rungs = self._rungs[1:]
        if failed is not None and failed.tier == "captured":
            # What cannot be recorded as it is cannot be recorded fused either.
            self._rungs = []
        elif self._settings.tier == "compiled" and self._body.device.type == "cuda":
            self._rungs = ["captured"]
        self._say_why_not(reason, step)

    def _step_down(self, reason: str, step: int) -> None:
        """Go back to eager, and climb again from there."""
        self.show_grads()
        now_s(self._body.device)  # replays that are under way still read what the recordings hold
        self._rungs, _ = self._rungs_ahead()
        again = "the step is prepared anew"
        if self.num_compiles >= MAX_COMPILES and "compiled" in self._rungs:
            self._rungs.remove("compiled")
            again = f"it was compiled {self.num_compiles} times already and is not compiled again"
        self._trial, self._below = None, None
        self._stand_on(self._eager, "eager", f"{reason}; {again}", step)

    def _measure(self, step: int) -> None:
        """Take in how long the window took; where that tells the time of the tier, decide about it."""
        if self.tier != "eager" and self._left_to_python:
            return
        if self._times.end_window(self.tier):
            self._settle(step)
        elif self._times.knows(self.tier):
            self._below = None

    def _settle(self, step: int) -> None:
        """Under tier='auto', stay only where it was measured to be no slower than the tier below."""
        below, self._below = self._below, None
        if below is None or self._settings.tier != "auto":
            return
        runner, tier, why = below
        times = self.step_s
        before, here = times.get(tier), times[self.tier]
        if before is not None and here > before:
            slower = f"{self.tier} was measured slower: {here * 1e3:.3f} ms against {before * 1e3:.3f} ms"
            if tier == "eager":
                self._rungs = [rung for rung in self._rungs if rung == "compiled"]
            self._stand_on(runner, tier, f"{why}; {slower}" if why else slower, step)


def _why_refused(error: Refused | torch.OutOfMemoryError) -> str:
    return str(error) if isinstance(error, Refused) else "there is no memory left to try a faster tier in"

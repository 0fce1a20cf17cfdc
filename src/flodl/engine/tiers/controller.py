"""From the eager tier upwards: try, promote, measure; and back down with a reason."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from ..capture.runner import Lane, RecordedRunner, Runner
from ..compile.policy import COMPILE_AFTER_S, CompilePolicy, NotCompiled
from ..device.autograd_history import cut_history
from ..device.timing import WindowTimes, now_s
from ..guards.recompile import GuardFailed
from ..guards.thorough import Ground
from ..optimizer.prepare import ChangingSettings, Readiness, has_step_hooks, prepare
from ..program.oom import SplittingRunner
from ..program.program import Outcome, StepBody
from ..program.runner import Micro
from ..report import Journal
from ..settings import StepSettings, Tier
from ..verify.failure import TrialFailure, comes_from_step, explain_failure, may_have_updated
from ..verify.trial import Trial
from .other_shapes import OtherShapes

WARM_WINDOWS = 3
MAX_COMPILES = 4
MAX_DISTURBED = 4
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
        self._compilation = CompilePolicy(body, journal)
        self._windows = 0
        self._disturbed = 0
        # Whether part of this window did not run on the runner: its gradients are where Python keeps them.
        self._left_to_python = False
        self._ground: Ground | None = None
        self._looked_at = 0
        self._settings_seen = ChangingSettings(body.optimizer)
        self._others = OtherShapes(body, self._eager, journal)
        self._times = WindowTimes(body.device)
        self.cost_s = 0.0
        self.num_compiles = 0
        # The short way for the next call, where a whole step is replayed like the last one.
        self.lane: Lane | None = None
        self._may_be_short = settings.accumulate == 1 and settings.tail != "pad"

    @property
    def captures(self) -> int:
        """How many recordings there are."""
        return self._runner.captures + self._others.captures

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
            begun = "" if self.reason else "training has just begun; "
            return f"{begun}the next tier is tried after a few steps"
        if self._compilation.is_running:
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
            self._times.discard_window()
            return self._tried(micro, step)
        if self.tier == "eager" or self._left_to_python:
            return self._eagerly(micro, step)
        changed = self._runner.what_changed() or self._looked_around(step)
        if changed is None and not self._runner.fits(micro):
            self._times.discard_window()
            changed = self._shape_that_stays(micro)
            if changed is None:
                return self._other_shape(micro, step)
        if changed is None:
            self._others.usual_again()
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
        trial, candidate = self._trial, None
        try:
            with self._counting(trial):
                candidate = trial.end_window()
        except Exception as error:
            # The update is done, so nothing that a trial comes to may stop the training.
            self._end_trial(explain_failure(error, trial.tier), step)
        if candidate is not None:
            self._promote(candidate, trial, step)

    @contextmanager
    def _counting(self, trial: Trial) -> Iterator[None]:
        """Count the time that a trial takes, and the compilation if there is one, whatever comes of it."""
        started, is_new, has_failed = time.perf_counter(), trial.cost_s == 0, True
        try:
            yield
            has_failed = False
        finally:
            self.cost_s += time.perf_counter() - started
            if trial.tier == "compiled" and is_new and (has_failed or trial.cost_s > 0):
                self.num_compiles += 1

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
        if not self._rungs or self._trial is not None:
            return
        if self._readiness.capturable and (moving := self._settings_seen.seen()):
            reason = f"its {moving} changes with every update, and a recording would keep it"
            self._readiness = replace(self._readiness, capturable=False, reason=reason)
        if self._windows < WARM_WINDOWS or micro.ragged:
            return
        if not self._body.has_updated:
            return
        target = self._rungs[0]
        if target == "compiled" and not self._may_compile(micro, step):
            return
        if not self._times.is_known(self.tier) and self._settings.tier == "auto":
            return
        self._compilation.is_ready = False
        if self._readiness.capturable and has_step_hooks(self._body.optimizer):
            self._readiness = prepare(self._body.optimizer)
        found = self._compilation
        self._trial = Trial(target, self._body, self._readiness, tune=found.tune, layout=found.layout)

    def _may_compile(self, micro: Micro, step: int) -> bool:
        started, was_ready = time.perf_counter(), self._compilation.is_ready
        try:
            may_begin = self._compilation.may_start(micro, step)
        except NotCompiled as reason:
            self._rungs = []
            self._say_why_not(str(reason), step)
            return False
        if may_begin:
            self.cost_s += time.perf_counter() - started
        if may_begin and not was_ready and self._body.device.type != "cuda":
            # A CPU was busy with the compiler meanwhile, so what steps took then says nothing.
            self._times.forget(self.tier)
        return may_begin

    def _say_why_not(self, reason: str, step: int) -> None:
        self._journal.say(step, self.tier, reason)
        self.reason = f"{self.reason}; {reason}" if self.reason else reason

    def _tried(self, micro: Micro, step: int) -> Outcome:
        """Let the trial watch a micro-batch; one that it fails at is run without.

        Only then it counts against the tier: an error of the step's own, or a wait that strict=True forbids,
        comes again and says nothing about it.
        """
        assert self._trial is not None
        self._left_to_python = True
        if not micro.opens:
            self._body.note_statistics()
        try:
            return self._trial.watch(micro)
        except Exception as error:
            no_memory, of_the_step = isinstance(error, torch.OutOfMemoryError), comes_from_step(error)
            if of_the_step and not no_memory:
                raise
            refused = explain_failure(error, self._trial.tier)
            if no_memory:
                self._end_trial(refused, step)
            if of_the_step:
                if may_have_updated(error) or (self._body.progress.touches and not micro.opens):
                    raise
                self._body.undo_forward(opens=micro.opens)
        outcome = self._eagerly(micro, step)
        if self._trial is not None:
            self._end_trial(refused, step)
        return outcome

    def _eagerly(self, micro: Micro, step: int) -> Outcome:
        if not micro.opens:
            self.show_grads()
        self._left_to_python = True
        return self._eager.run_and_tell(micro, self._journal, step)

    def _shape_that_stays(self, micro: Micro) -> str | None:
        """Say that batches have changed for good, where compiled code for their new shape may be had."""
        if self.tier != "compiled" or micro.ragged or not micro.opens:
            return None
        if not self._others.stays(micro) or self._compiled_enough:
            return None
        return "batches have another shape now"

    def _other_shape(self, micro: Micro, step: int) -> Outcome:
        outcome = self._others.run(micro, self._runner, step)
        if outcome is None:
            return self._eagerly(micro, step)
        # The next step must not be told by what the runner replayed last.
        self._left_to_python = True
        return outcome

    def _ground_for(self, runner: Runner) -> Ground:
        updates = isinstance(runner, RecordedRunner) and runner.update_inside
        return Ground(
            self._body.model,
            with_tensors=self._body.device.type == "cuda",
            optimizer=self._body.optimizer if updates else None,
        )

    def _looked_around(self, step: int) -> str | None:
        """Name what changed in the model, every so many calls."""
        # A state that was loaded may have gone back to an earlier step.
        if self._ground is None or 0 <= step - self._looked_at < self._look_every():
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
        if self._trial is not None or not self._times.is_known(self.tier) or not self._may_be_short:
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
        if self._body.device.type == "cuda":
            cut_history(self._body.model, self._body.lasting)
        self._below = (self._runner, self.tier, self.reason)
        self._others.begin(self._kept_beside(candidate))
        self._trial, self._ground, self._looked_at = None, self._ground_for(candidate), step
        self._rungs = self._rungs[1:]
        self._times.forget(trial.tier)
        self._stand_on(candidate, trial.tier, trial.summary, step)

    def _kept_beside(self, candidate: Runner) -> RecordedRunner | None:
        """Give the recordings that go on serving other shapes beside a compiled step; None where none can."""
        before = self._runner
        if not isinstance(before, RecordedRunner) or not isinstance(candidate, RecordedRunner):
            return None
        if self._settings.accumulate > 1 or before.update_inside != candidate.update_inside:
            return None
        # They rest on the model as it was before the trial.
        return before if self._ground is not None and self._ground.what_changed() is None else None

    def _stand_on(self, runner: Runner, tier: Tier, reason: str, step: int) -> None:
        self._runner, self.tier, self.reason = runner, tier, reason
        self._times.discard_window()
        self._journal.say(step, tier, reason, again=True)

    def _end_trial(self, refused: TrialFailure, step: int) -> None:
        """Try again later where something only came in between; else stay where we are."""
        assert self._trial is not None
        reason, may_repeat = refused.reason, refused.may_repeat and self._disturbed < MAX_DISTURBED
        if may_repeat and self._trial.tier == "compiled" and self._compiled_enough:
            may_repeat, reason = False, f"{reason}; {self._not_again}"
        if not may_repeat:
            self._give_up(reason, step)
            return
        self._disturbed += 1
        self._trial, self._windows = None, 0
        self._journal.say(step, self.tier, f"{reason}; it is tried again")

    @property
    def _compiled_enough(self) -> bool:
        return self.num_compiles >= MAX_COMPILES

    @property
    def _not_again(self) -> str:
        return f"it was compiled {self.num_compiles} times already and is not compiled again"

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
        if self._compiled_enough and "compiled" in self._rungs:
            self._rungs = ["captured"] if self._body.device.type == "cuda" else []
            again = self._not_again
        self._trial, self._below = None, None
        self._others.begin()
        self._stand_on(self._eager, "eager", f"{reason}; {again}", step)

    def _measure(self, step: int) -> None:
        """Take in how long the window took; where that tells the time of the tier, decide about it."""
        if self.tier != "eager" and self._left_to_python:
            return
        if self._times.end_window(self.tier):
            self._settle(step)
        elif self._times.is_known(self.tier):
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
            self._others.begin()
            self._stand_on(runner, tier, f"{why}; {slower}" if why else slower, step)
        else:
            self._others.leave_to(self._runner)

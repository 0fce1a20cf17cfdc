"""Decides which tier runs: tries the next one, promotes, measures, and falls back with a reason."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ..capture.lane import Lane
from ..capture.runner import RecordedRunner, Runner
from ..capture.update_program import UpdateProgram
from ..compile.policy import COMPILE_AFTER_S, CompilePolicy, NotCompiled
from ..device.autograd_history import cut_history
from ..device.timing import WindowTimes, now_s
from ..guards.recompile import GuardFailed
from ..optimizer.prepare import ChangingSettings, Readiness, has_step_hooks, prepare
from ..program.outcome import Outcome
from ..program.program import StepBody
from ..program.runner import Micro, Phase, SplittingRunner
from ..report import Cause, Journal
from ..settings import Tier
from ..state.copies import free_memory, is_memory_tight
from ..verify.failure import StepFailed, TrialFailure, explain_failure
from ..verify.trial import Trial
from .inspection import Inspection
from .other_shapes import OtherShapes
from .plan import plan_tiers

WARM_WINDOWS = 3
MAX_COMPILES = 4
MAX_DISTURBED = 4


@dataclass
class Standing:
    """A tier, the runner that implements it, and why it runs."""

    runner: Runner
    tier: Tier
    reason: str


@dataclass
class Attempts:
    """What was tried so far, and what it cost."""

    cost_s: float = 0.0
    num_compiles: int = 0
    num_disturbed: int = 0
    num_windows: int = 0

    @property
    def compiled_enough(self) -> bool:
        """Whether the step is not compiled again."""
        return self.num_compiles >= MAX_COMPILES

    @property
    def not_again(self) -> str:
        """The reason for that."""
        return f"it was compiled {self.num_compiles} times already and is not compiled again"


class TierController:
    """The tier that runs now, the one being compared with eager, and those to try next."""

    def __init__(self, body: StepBody, readiness: Readiness, journal: Journal) -> None:
        self._body = body
        self._journal = journal
        self.readiness = readiness
        self._eager = SplittingRunner(body)
        self.tiers_ahead, reason = plan_tiers(self._body)
        self._current = Standing(self._eager, "eager", reason)
        self._below: Standing | None = None
        self._trial: Trial | None = None
        self._compilation = CompilePolicy(body, journal)
        self._attempts = Attempts()
        # Whether part of this window ran in Python, so that its gradients are in `.grad`.
        self._ran_in_python = False
        self._inspection = Inspection(body)
        self._moving_settings = ChangingSettings(body.optimizer)
        self.other_shapes = OtherShapes(body, self._eager, journal)
        self._times = WindowTimes(body.device)
        # The fast path of the next call, where a whole step is replayed like the last one.
        self.lane: Lane | None = None

    @property
    def tier(self) -> Tier:
        """The tier that runs the next step."""
        return self._current.tier

    @property
    def runner(self) -> Runner:
        """The runner of that tier."""
        return self._current.runner

    @property
    def is_comparing(self) -> bool:
        """Whether a faster tier is being compared with eager."""
        return self._trial is not None

    @property
    def num_compiles(self) -> int:
        """How often the step was compiled, failures included."""
        return self._attempts.num_compiles + self.other_shapes.compiled.num_compiles

    @property
    def cost_s(self) -> float:
        """The seconds spent on comparisons and compilation."""
        return self._attempts.cost_s + self.other_shapes.compiled.cost_s

    @property
    def captures(self) -> int:
        """How many recordings there are."""
        return self._current.runner.captures + self.other_shapes.captures

    @property
    def step_s(self) -> dict[str, float]:
        """The seconds per step of each tier that was measured."""
        measured = {tier: self._times.of(tier) for tier in ("eager", "captured", "compiled")}
        accumulate = self._body.settings.accumulate
        return {tier: s / accumulate for tier, s in measured.items() if s is not None}

    @property
    def why(self) -> str:
        """Why this tier runs, and what comes next."""
        return "; ".join(part for part in (self._current.reason, self._outlook()) if part)

    def _outlook(self) -> str:
        if self._trial is not None:
            return f"the {self._trial.tier} step is being compared with eager"
        if not self.tiers_ahead:
            return ""
        if self.tiers_ahead[0] != "compiled" or self._body.settings.tier != "auto":
            begun = "" if self._current.reason else "training has just begun; "
            return f"{begun}the next tier is tried after a few steps"
        if self._compilation.is_running:
            return "the step is being compiled in another process"
        after_s = COMPILE_AFTER_S[self._body.device.type]
        return f"after {after_s:g} s of training, the step is compiled in another process"

    def run(self, micro: Micro, step: int) -> Outcome:
        """Run a micro-batch on the best tier that fits it."""
        self.lane = None
        self._times.begin_call(self._current.tier, opens=micro.opens)
        try:
            return self._run(micro, step)
        finally:
            self._times.end_call()

    def _run(self, micro: Micro, step: int) -> Outcome:
        if micro.opens:
            self._ran_in_python = False
            self._body.updater.refresh()
            if self.tiers_ahead and self._trial is None and self._is_warm(micro):
                self._start_trial(micro, step)
        if self._trial is None and (self._current.runner is self._eager or self._ran_in_python):
            return self._run_eagerly(micro, step)
        return self._run_fast(micro, step)

    def _run_fast(self, micro: Micro, step: int) -> Outcome:
        if self._trial is not None:
            self._times.discard_window()
            return self._run_in_trial(micro, step)
        runner = self._current.runner
        changed = runner.what_changed() or self._inspect(step)
        if changed is None and not runner.fits(micro):
            self._times.discard_window()
            changed = self._lasting_shape_change(micro)
            if changed is None:
                return self._run_other_shape(micro, step)
        if changed is None:
            self.other_shapes.usual_again()
            try:
                return runner.run(micro)
            except GuardFailed as failed:
                changed = str(failed)
        self._fall_back(changed, step)
        return self._run_eagerly(micro, step)

    def show_grads(self) -> None:
        """Put the gradients of a half-filled window into `.grad`, where the update reads them."""
        if not self._ran_in_python:
            self._current.runner.show_grads()

    def end_window(self, step: int) -> None:
        """Compare, promote and measure at the end of a window."""
        self._attempts.num_windows += 1
        if self._trial is None:
            ran = self._current.runner
            self._measure(step)
            if ran is self._eager:
                return
            if isinstance(ran, RecordedRunner) and ran.update_program is not None:
                self._report_update(ran.update_program, step)
            # A new runner writes its values to memory that nobody has read yet.
            self.lane = self._fast_path(step) if self._current.runner is ran else None
            return
        trial, candidate = self._trial, None
        try:
            with self._count_cost(trial), self._body.progress.preserved():
                candidate = trial.end_window()
        except Exception as error:
            # The update is done, so nothing that goes wrong in a trial may stop the training.
            self._end_trial(explain_failure(error, trial.tier), step)
        if candidate is not None:
            self._promote(candidate, trial, step)

    @contextmanager
    def _count_cost(self, trial: Trial) -> Iterator[None]:
        """Add the time of a trial, and the compilation if there is one, even if it fails."""
        started, is_new, has_failed = time.perf_counter(), trial.cost_s == 0, True
        try:
            yield
            has_failed = False
        finally:
            self._attempts.cost_s += time.perf_counter() - started
            if trial.tier == "compiled" and is_new and (has_failed or trial.cost_s > 0):
                self._attempts.num_compiles += 1

    def close(self) -> None:
        """End compilations that run in other processes."""
        self._compilation.close()
        self.other_shapes.compiled.close()

    def _is_warm(self, micro: Micro) -> bool:
        """Return whether it may be time for a trial; cheap, since it is asked in every window."""
        if self.readiness.capturable and (moving := self._moving_settings.check()):
            reason = f"its {moving} changes with every update, and a recording would keep it"
            self.readiness = replace(self.readiness, capturable=False, reason=reason)
        if self._attempts.num_windows < WARM_WINDOWS or micro.ragged:
            return False
        return self.tiers_ahead[0] != "compiled" or time.perf_counter() >= self._compilation.due_s

    def _start_trial(self, micro: Micro, step: int) -> None:
        """Start a trial of the next tier, if the last update was applied and compilation allows it."""
        if not self._body.updater.has_updated:
            return
        target = self.tiers_ahead[0]
        if target == "compiled" and not self._may_compile(micro, step):
            return
        if not self._times.is_known(self._current.tier) and self._body.settings.tier == "auto":
            return
        self._compilation.is_ready = False
        if self.readiness.capturable and has_step_hooks(self._body.optimizer):
            self.readiness = prepare(self._body.optimizer)
        found = self._compilation
        self._make_room(target)
        self._trial = Trial(target, self._body, self.readiness, tune=found.tune, layout=found.layout)

    def _make_room(self, target: Tier) -> None:
        """Drop the recordings of the present tier if they leave too little memory for eager steps.

        A trial runs eagerly, which needs as much memory again. If it fails, the step is recorded again.
        """
        runner = self._current.runner
        if not isinstance(runner, RecordedRunner) or not is_memory_tight(self._body.device):
            return
        runner.forget_all()
        self.other_shapes.begin()
        reason = "the recordings were dropped, since a trial of the next tier needs their memory"
        self._current, self._below = Standing(self._eager, "eager", reason), None
        self.tiers_ahead = [target, "captured"]

    def _may_compile(self, micro: Micro, step: int) -> bool:
        started, was_ready = time.perf_counter(), self._compilation.is_ready
        try:
            may_begin = self._compilation.may_start(micro, step)
        except NotCompiled as reason:
            self.tiers_ahead = []
            self._report_refusal(str(reason), step)
            return False
        if may_begin:
            self._attempts.cost_s += time.perf_counter() - started
        if may_begin and not was_ready and self._body.device.type != "cuda":
            # The compiler kept the CPU busy meanwhile, so step times measured then mean nothing.
            self._times.forget(self._current.tier)
        return may_begin

    def _report_refusal(self, reason: str, step: int) -> None:
        current = self._current
        self._journal.add(step, current.tier, Cause.REFUSED, reason)
        current.reason = f"{current.reason}; {reason}" if current.reason else reason

    def _report_update(self, program: UpdateProgram, step: int) -> None:
        """Report once if the update cannot be recorded apart from the rest of the step."""
        if program.refusal is not None:
            reason = f"{program.refusal}; updates stay in Python"
            self._journal.add(step, self._current.tier, Cause.REFUSED, reason)

    def _run_in_trial(self, micro: Micro, step: int) -> Outcome:
        """Let the trial watch a micro-batch; if the trial fails, run it without.

        Only then does it count against the tier: an error of the step itself, or a host sync that
        strict=True forbids, occurs again and says nothing about the tier.
        """
        assert self._trial is not None
        self._ran_in_python = True
        if not micro.opens:
            self._body.undo.start_micro_batch()
        try:
            return self._trial.watch(micro)
        except Exception as error:
            refused = explain_failure(error, self._trial.tier)
            failed = error if isinstance(error, StepFailed) else None
        if refused.no_memory:
            self._end_trial(refused, step)
        try:
            if failed is not None:
                self._undo_failed_step(failed, refused, micro)
        finally:
            failed = None  # its traceback refers to this frame, and to the tensors of the step
        outcome = self._run_eagerly(micro, step)
        if self._trial is not None:
            self._end_trial(refused, step)
        return outcome

    def _undo_failed_step(self, failed: StepFailed, refused: TrialFailure, micro: Micro) -> None:
        """Undo a step that ran out of memory in a trial; raise any other error, and one in an update."""
        half_accumulated = self._body.progress.is_writing and not micro.opens
        if not refused.no_memory or failed.may_have_updated or half_accumulated:
            raise failed.error
        self._body.undo.undo(opens=micro.opens)

    def _run_eagerly(self, micro: Micro, step: int) -> Outcome:
        if not self._ran_in_python:
            if not micro.opens:
                self._current.runner.show_grads()
            self._ran_in_python = True
        return self._eager.run_and_report(micro, self._journal, step)

    def _lasting_shape_change(self, micro: Micro) -> str | None:
        """Return a reason if batches have changed shape for good and may be compiled for the new one."""
        if self._current.tier != "compiled" or micro.ragged or not micro.opens:
            return None
        if self._is_compiled_beside(micro):
            return None
        if not self.other_shapes.stays(micro) or self._attempts.compiled_enough:
            return None
        carried = self._body.undo.carried
        if carried is not None and not carried.is_kept(micro.carried):
            return "batches start without carried values now, as after reset_state(), or change their shape"
        return "batches have a different shape now"

    def _is_compiled_beside(self, micro: Micro) -> bool:
        """Return whether the step may be compiled for a shape in addition to those that it has."""
        if not isinstance(self._current.runner, RecordedRunner) or micro.phase is not Phase.ONLY:
            return False
        return self.other_shapes.compiled.may_follow(micro.signature)

    def _run_other_shape(self, micro: Micro, step: int) -> Outcome:
        outcome = self.other_shapes.run(micro, self._current.runner, step)
        if outcome is None:
            return self._run_eagerly(micro, step)
        # The next step must not use the fast path of what the runner replayed last.
        self._ran_in_python = True
        return outcome

    def _inspect(self, step: int) -> str | None:
        """Return what changed in the model, checked every few hundred steps."""
        if not self._inspection.is_due(step, self._times.of(self._current.tier)):
            return None
        if self.readiness.capturable and has_step_hooks(self._body.optimizer):
            # A replay would not call them.
            self.readiness = prepare(self._body.optimizer)
            return "the optimizer got step hooks"
        return self._inspection.what_changed()

    def _fast_path(self, step: int) -> Lane | None:
        """Return the fast path for the steps until the next inspection, if they can be like the last one."""
        settings, runner = self._body.settings, self._current.runner
        if settings.accumulate > 1 or settings.tail == "pad" or not self._times.is_known(self._current.tier):
            return None
        if type(runner) is not RecordedRunner or self._ran_in_python:
            return None
        return runner.lane(self._inspection.steps_left(step, self._times.of(self._current.tier)))

    def _promote(self, candidate: Runner, trial: Trial, step: int) -> None:
        if self._body.device.type == "cuda":
            cut_history(self._body.model, self._body.side_effects.lasting)
        self._below = self._current
        self.other_shapes.begin(self._recordings_kept(candidate))
        self._trial = None
        self._inspection.start(candidate, step)
        # The tiers after it are needed only if it fails.
        self.tiers_ahead = [] if trial.tier == "compiled" else self.tiers_ahead[1:]
        self._times.forget(trial.tier)
        if trial.tier == "compiled":
            self._compilation.confirm()
        self._switch_to(Standing(candidate, trial.tier, trial.summary), Cause.PROMOTED, step)
        free_memory(self._body.device)

    def _recordings_kept(self, candidate: Runner) -> RecordedRunner | None:
        """Return the recordings that keep serving other shapes next to a compiled step, if there are any."""
        before = self._current.runner
        if not isinstance(before, RecordedRunner) or not isinstance(candidate, RecordedRunner):
            return None
        if self._body.settings.accumulate > 1 or before.update_inside != candidate.update_inside:
            return None
        # They depend on the model as it was before the trial.
        return before if self._inspection.is_unchanged else None

    def _switch_to(self, standing: Standing, cause: Cause, step: int) -> None:
        self._current = standing
        self._times.discard_window()
        self._journal.add(step, standing.tier, cause, standing.reason, repeat=True)

    def _end_trial(self, refused: TrialFailure, step: int) -> None:
        """Try again later if the trial was merely disturbed; otherwise stay on the current tier."""
        assert self._trial is not None
        attempts = self._attempts
        reason, may_repeat = refused.reason, refused.may_repeat and attempts.num_disturbed < MAX_DISTURBED
        if may_repeat and self._trial.tier == "compiled" and attempts.compiled_enough:
            may_repeat, reason = False, f"{reason}; {attempts.not_again}"
        if not may_repeat:
            self._give_up(reason, step, may_compile=refused.is_wait)
            return
        attempts.num_disturbed += 1
        attempts.num_windows = 0
        self._trial = None
        free_memory(self._body.device)
        self._journal.add(step, self._current.tier, Cause.RETRY, f"{reason}; it is tried again later")

    def _give_up(self, reason: str, step: int, *, may_compile: bool) -> None:
        """Stay on the current tier; where a compiled step was requested and fails, capture may still work."""
        failed, self._trial = self._trial, None
        free_memory(self._body.device)
        self.tiers_ahead = self.tiers_ahead[1:]
        if failed is not None and failed.tier == "compiled":
            self._compilation.retract()
        if failed is not None and failed.tier == "captured":
            # What cannot be captured cannot be captured when it is compiled either, except for a host sync:
            # the compiler may fold what is read into a constant.
            self.tiers_ahead = self.tiers_ahead if may_compile else []
        elif self._body.settings.tier == "compiled" and self._body.device.type == "cuda":
            self.tiers_ahead = ["captured"]
        self._report_refusal(reason, step)

    def _fall_back(self, reason: str, step: int) -> None:
        """Go back to eager, and try the faster tiers again from there."""
        self.show_grads()
        now_s(self._body.device)  # replays that still run read what the recordings hold
        self.tiers_ahead, _ = plan_tiers(self._body)
        next_step = "the step is prepared again"
        if self._attempts.compiled_enough and "compiled" in self.tiers_ahead:
            self.tiers_ahead = ["captured"] if self._body.device.type == "cuda" else []
            next_step = self._attempts.not_again
        self._trial, self._below = None, None
        self.other_shapes.begin()
        self._switch_to(Standing(self._eager, "eager", f"{reason}; {next_step}"), Cause.INVALIDATED, step)

    def _measure(self, step: int) -> None:
        """Add the time of the window; once the time of the tier is known, keep the tier or leave it."""
        tier = self._current.tier
        if tier != "eager" and self._ran_in_python:
            return
        if self._times.end_window(tier):
            self.keep_if_faster(step)
        elif self._below is not None and self._times.is_known(tier):
            self._below = None

    def keep_if_faster(self, step: int) -> None:
        """Under tier='auto', stay only if the tier was measured no slower than the one below."""
        below, self._below = self._below, None
        if below is None or self._body.settings.tier != "auto":
            return
        times, tier = self.step_s, self._current.tier
        before, here = times.get(below.tier), times[tier]
        if before is not None and here > before:
            if tier == "compiled":
                self._compilation.retract()
            slower = f"{tier} was measured slower: {here * 1e3:.3f} ms against {before * 1e3:.3f} ms"
            if below.tier == "eager":
                self.tiers_ahead = [ahead for ahead in self.tiers_ahead if ahead == "compiled"]
            self.other_shapes.begin()
            below.reason = f"{below.reason}; {slower}" if below.reason else slower
            self._switch_to(below, Cause.SLOWER, step)
        else:
            self.other_shapes.leave_to(self._current.runner)

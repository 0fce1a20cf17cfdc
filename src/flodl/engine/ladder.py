"""From the eager tier upwards: try, compare, promote; and back down with a reason."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from .batch import Signature, num_samples
from .body import Outcome, StepBody
from .capture import NotCapturable, rehearse
from .comparison import TOLERANCE, gradient_difference, gradients
from .events import Journal
from .optimizer import Readiness
from .runners import EagerRunner, Micro, RecordedRunner, Runner, fused
from .settings import StepSettings, Tier
from .snapshot import Snapshot

WARM_WINDOWS = 3
VERIFIED_WINDOWS = 2
SEEN_BEFORE_RECORDING = 3
MAX_CAPTURES = 8
MEASURED_WINDOWS = {"eager": 2, "captured": 5, "compiled": 5}


class Ladder:
    """The tier that runs now, and the one that is being tried."""

    def __init__(
        self, body: StepBody, settings: StepSettings, readiness: Readiness, journal: Journal
    ) -> None:
        self._body = body
        self._settings = settings
        self._readiness = readiness
        self._journal = journal
        self._eager = EagerRunner(body)
        self._runner: Runner = self._eager
        self.tier: Tier = "eager"
        self._target, self.reason = self._first_target()
        self._candidate: Runner | None = None
        self._window: list[Micro] = []
        self._before: Snapshot | None = None
        self._verified = 0
        self._repeats = True
        self._windows = 0
        self._seen: dict[Signature, int] = {}
        self._mark: tuple[int, float] | None = None
        self.step_s: dict[str, float] = {}
        self.cost_s = 0.0

    @property
    def captures(self) -> int:
        """How many recordings the present tier has."""
        return self._runner.captures

    def run(self, micro: Micro, step: int) -> Outcome:
        """Run a micro-batch on the best tier that fits it."""
        if self.tier != "eager":
            changed = self._runner.what_changed()
            if changed is not None:
                self._step_down(changed, step)
            elif self._runner.fits(micro):
                return self._runner.run(micro)
            else:
                return self._other_shape(micro, step)
        if self._target is not None and self._windows >= WARM_WINDOWS:
            return self._watched(micro, step)
        return self._eagerly(micro, step)

    def replay_same(self, batch: tuple[Any, ...]) -> Outcome | None:
        """Replay without further thought a whole step like the last one; None sends it the long way."""
        if self.tier not in self.step_s or not isinstance(self._runner, RecordedRunner):
            return None
        return self._runner.replay_same(batch)

    def show_grads(self) -> None:
        """Put the gradients of a half-filled window where the update looks for them."""
        self._runner.show_grads()

    def end_window(self, step: int) -> None:
        """Compare, promote and measure where a window has ended."""
        self._windows += 1
        if self._before is not None:
            self._try(step)
        else:
            self._measure(step)

    def _first_target(self) -> tuple[Tier | None, str]:
        """Give the tier to climb to, or none and the reason."""
        wanted, device = self._settings.tier, self._body.device.type
        if wanted == "eager":
            return None, "tier='eager' was asked for"
        if device == "cuda" and getattr(self._body.model, "has_state", False):
            return None, "the model carries values from call to call, which a recording would not feed back"
        if wanted == "compiled":
            return "compiled", ""
        if device != "cuda":
            return None, f"the model is on {device}; capture needs CUDA, and compiling has to be asked for"
        return "captured", ""

    def _eagerly(self, micro: Micro, step: int) -> Outcome:
        """Run eagerly; out of memory, cut the batch into more pieces and keep the mathematics."""
        while True:
            try:
                outcome = self._eager.run_without_update(micro)
                break
            except torch.OutOfMemoryError:
                pieces = self._body.pieces * 2
                if not micro.opens or pieces > num_samples(micro.batch):
                    raise
            self._body.pieces = pieces
            self._body.clear()
            if self._body.device.type == "cuda":
                torch.cuda.empty_cache()
            reason = f"out of memory: each batch runs as {pieces} pieces, with the gradients of the whole"
            self._journal.say(step, "split", reason)
        if micro.closes:
            self._body.update(outcome, micro.correction)
        return outcome

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
        before = Snapshot(self._body)
        outcome = self._eagerly(micro, step)
        after = Snapshot(self._body)
        before.restore()
        self._runner.learn(micro)
        before.restore()
        self._runner.run(micro)
        difference = after.first_difference(Snapshot(self._body))
        after.restore()
        if difference is not None:
            self._stay_eager(f"the captured step differs from eager for another shape: {difference}", step)
        return outcome

    def _watched(self, micro: Micro, step: int) -> Outcome:
        """Run eagerly and remember the window, to run it again on the candidate and compare."""
        if micro.opens:
            self._window = []
            self._before = Snapshot(self._body)
        elif self._before is None:
            return self._eager.run(micro)
        self._window.append(micro)
        if self._candidate is not None or self._body.device.type != "cuda":
            return self._eager.run(micro)
        moment = Snapshot(self._body)
        try:
            if self._readiness.capturable:
                return rehearse(lambda: self._eager.run(micro))
            outcome = rehearse(lambda: self._eager.run_without_update(micro))
        except NotCapturable as error:
            moment.restore()
            self._stay_eager(f"the step cannot be {self._target}: {error}", step)
            return self._eager.run(micro)
        if micro.closes:
            self._body.update(outcome, micro.correction)
        return outcome

    def _try(self, step: int) -> None:
        """Run the window again on the candidate, from the same state, and compare."""
        before, window = self._before, self._window
        assert before is not None
        self._before, self._window = None, []
        after, grads = Snapshot(self._body), gradients(self._body)
        try:
            before.restore()
            candidate = self._prepared(window, before)
            for micro in window:
                candidate.run(micro)
        except NotCapturable as error:
            after.restore()
            self._stay_eager(f"the step cannot be {self._target}: {error}", step)
            return
        candidate.show_grads()
        difference = self._difference(after, grads)
        if difference is not None and self._target == "captured":
            difference = self._excused(difference, gradients(self._body), grads, before, window)
        after.restore()
        if difference is not None:
            self._stay_eager(f"the {self._target} step differs from eager: {difference}", step)
            return
        self._verified += 1
        if self._verified >= VERIFIED_WINDOWS:
            self._promote(candidate, step)

    def _prepared(self, window: list[Micro], before: Snapshot) -> Runner:
        """Give the candidate with everything recorded that the window needs, and the state as before."""
        started = time.perf_counter()
        on_cuda = self._body.device.type == "cuda"
        if self._candidate is None:
            body = self._body
            if self._target == "compiled":
                body = self._compiled(window)
                before.restore()
            inside = self._readiness.capturable
            self._candidate = RecordedRunner(body, update_inside=inside) if on_cuda else EagerRunner(body)
        for micro in window:
            self._candidate.learn(micro)
            before.restore()
        self.cost_s += time.perf_counter() - started
        return self._candidate

    def _compiled(self, window: list[Micro]) -> StepBody:
        """Give the body with fused kernels, compiled by running the window once."""
        body = fused(self._body)
        try:
            # Twice: what the first run compiles, the second may still tune.
            for micro in [*window, *window]:
                EagerRunner(body).run(micro)
        except Exception as error:
            told = str(error).strip().split("\n")[0]
            raise NotCapturable(f"torch's compiler failed: {told}") from error
        return body

    def _excused(
        self,
        difference: str,
        candidate: list[Tensor | None],
        eager: list[Tensor | None],
        before: Snapshot,
        window: list[Micro],
    ) -> str | None:
        """Accept a difference within the tolerance where eager does not even repeat itself.

        Some kernels (cuDNN's, under autotuning) add in an order that changes from run to run.
        """
        ends = []
        for _ in range(2):
            before.restore()
            for micro in window:
                self._eager.run(micro)
            ends.append(Snapshot(self._body))
        if ends[0].first_difference(ends[1]) is None:
            return difference
        self._repeats = False
        return gradient_difference(eager, candidate, TOLERANCE[self._settings.precision])

    def _difference(self, after: Snapshot, grads: list[Tensor | None]) -> str | None:
        if self._target == "captured":
            return after.first_difference(Snapshot(self._body))
        return gradient_difference(grads, gradients(self._body), TOLERANCE[self._settings.precision])

    def _promote(self, candidate: Runner, step: int) -> None:
        assert self._target is not None
        self._runner, self.tier, self._target, self._mark = candidate, self._target, None, None
        equal = "equal to eager bit for bit"
        if self.tier == "compiled" or not self._repeats:
            equal = f"gradients within {TOLERANCE[self._settings.precision]:g} of eager's"
        if not self._repeats:
            equal += ", which does not repeat itself bit for bit here"
        outside = isinstance(candidate, RecordedRunner) and not candidate.update_inside
        words = f"; the update stays outside: {self._readiness.reason}" if outside else ""
        self.reason = f"{equal} over {self._verified} updates{words}"
        self._journal.say(step, self.tier, self.reason)

    def _stay_eager(self, reason: str, step: int) -> None:
        self._body.clear()
        self._candidate, self._before, self._target = None, None, None
        self._runner, self.tier, self.reason = self._eager, "eager", reason
        self._journal.say(step, "eager", reason)

    def _step_down(self, reason: str, step: int) -> None:
        """Go back to eager, and climb again from there."""
        self._journal.say(step, "eager", f"{reason}; the step is recorded anew")
        self._target, self._candidate, self._before = self.tier, None, None
        self._runner, self.tier, self.reason = self._eager, "eager", ""
        self._verified, self._windows = 0, WARM_WINDOWS - 1

    def _measure(self, step: int) -> None:
        """Take the time of a few windows between two waits for the device."""
        tier = self.tier
        if tier in self.step_s:
            return
        if self._mark is None:
            self._mark = (self._windows, self._now())
        elif self._windows - self._mark[0] >= MEASURED_WINDOWS[tier]:
            taken = (self._now() - self._mark[1]) / (self._windows - self._mark[0])
            self.step_s[tier] = taken / self._settings.accumulate
            self._mark = None
            self._settle(step)

    def _now(self) -> float:
        if self._body.device.type == "cuda":
            torch.cuda.synchronize(self._body.device)
        return time.perf_counter()

    def _settle(self, step: int) -> None:
        """Under tier='auto', stay only where it was measured to be no slower than eager."""
        eager, here = self.step_s.get("eager"), self.step_s[self.tier]
        if self._settings.tier == "auto" and self.tier != "eager" and eager is not None and here > eager:
            tier = self.tier
            reason = f"{tier} was measured slower: {here * 1e3:.3f} ms against {eager * 1e3:.3f} ms"
            self._stay_eager(reason, step)

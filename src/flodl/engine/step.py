"""`TrainStep`: the whole training step as one call, and on CUDA as one captured program."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.optim import Schedule, apply

from .batch import Signature, num_samples, signature
from .body import Outcome, StepBody, StepFunction, shares
from .capture import NotCapturable, rehearse
from .captured import CapturedTier, is_tail, phase_of
from .events import Journal, StepReport
from .optimizer import prepare
from .settings import Precision, StepSettings, Tail, Tier, TierChoice
from .snapshot import Snapshot
from .tail import padded, with_mask

_WARM_WINDOWS = 3
_VERIFIED_WINDOWS = 2
_MEASURED_WINDOWS = 5


class TrainStep:
    """Run zero-grad, forward, loss, backward, clipping, schedule and update in one call.

    Training starts at once on the eager tier. On CUDA the same kernels are then recorded as one
    program, checked bit for bit against eager on real batches, and replayed.

    >>> model = nn.Linear(2, 1)
    >>> step = TrainStep(
    ...     model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x, y: (m(x) - y).square().mean()
    ... )
    >>> step(torch.zeros(4, 2), torch.zeros(4, 1)).shape, step.tier
    (torch.Size([]), 'eager')
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        step_fn: StepFunction,
        *,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
        precision: Precision = "fp32",
        schedule: Schedule | None = None,
        tier: TierChoice = "auto",
        tail: Tail = "eager",
    ) -> None:
        self._settings = StepSettings(
            clip_norm=clip_norm,
            clip_value=clip_value,
            accumulate=accumulate,
            precision=precision,
            tier=tier,
            tail=tail,
        )
        if tail == "pad":
            step_fn = with_mask(step_fn)
        readiness = prepare(optimizer)
        self._body = StepBody(model, optimizer, step_fn, self._settings, readiness)
        self._update_inside = readiness.capturable
        self._update_reason = readiness.reason
        self._bridge = None if schedule is None else apply(schedule, optimizer)
        self._journal = Journal()
        self._captured: CapturedTier | None = None
        self._tier: Tier = "eager"
        self._reason = self._why_eager()
        self._climbing = not self._reason and tier != "eager"
        self._window: list[tuple[tuple[Any, ...], float, Signature]] = []
        self._before: Snapshot | None = None
        self._verified = 0
        self._windows = 0
        self._steps = 0
        self._updates = 0
        self._position = 0
        self._first_samples = 0
        self._usual_samples = 0
        self._samples = 0
        self._values: dict[str, Tensor] = {}
        self._times: dict[str, float | None] = {"first": None, "eager": None, "captured": None}
        self._mark: tuple[int, float] | None = None

    @property
    def tier(self) -> Tier:
        """The tier that the next step runs on."""
        return self._tier

    @property
    def values(self) -> dict[str, Tensor]:
        """What the step function named beside the loss, of the last step."""
        return {name: value.clone() for name, value in self._values.items()}

    @property
    def grad_norm(self) -> Tensor:
        """The gradient norm before clipping of the last update, on the device; needs clip_norm."""
        return self._body.grad_norm.clone()

    @property
    def skipped(self) -> Tensor:
        """Whether the last update was skipped because loss or gradients were not finite, on the device."""
        return self._body.bad.bool()

    def __call__(self, *batch: Any) -> Tensor:
        started = time.perf_counter() if self._steps == 0 else 0.0
        if self._position == 0:
            self._first_samples, self._samples = num_samples(batch), 0
            self._usual_samples = max(self._usual_samples, self._first_samples)
        if self._settings.tail == "drop" and is_tail(batch, self._usual_samples):
            self._journal.say(self._steps, "dropped", "a ragged last batch, as tail='drop' asks")
            return torch.full((), torch.nan, device=self._body.device)
        share = shares(self._settings, batch, self._first_samples)
        self._samples += num_samples(batch)
        if self._settings.tail == "pad":
            batch = padded(batch, self._usual_samples)
        outcome = self._run(batch, share)
        self._values = dict(outcome.values)
        loss = outcome.loss.clone() if self._tier != "eager" else outcome.loss
        self._position += 1
        self._steps += 1
        if self._position == self._settings.accumulate:
            self._end_window()
        if started:
            self._times["first"] = time.perf_counter() - started
        return loss

    def flush(self) -> None:
        """Apply a window of accumulation that did not fill up, weighed by what it did get."""
        if self._position:
            loss = torch.zeros((), device=self._body.device)
            self._show_captured_grads()
            self._body.update(Outcome(loss, {}), self._correction())
            self._end_window()

    def report(self) -> StepReport:
        """Say which tier runs, why, what it cost and what it gains."""
        captured = self._captured
        return StepReport(
            tier=self._tier,
            reason=self._reason or "training has just begun; the captured tier is tried after a few steps",
            steps=self._steps,
            updates=self._updates,
            captures=captured.captures if captured else 0,
            eager_step_s=self._times["eager"],
            captured_step_s=self._times["captured"],
            capture_cost_s=captured.cost_s if captured else None,
            first_step_s=self._times["first"],
            events=tuple(self._journal.events),
        )

    def _why_eager(self) -> str:
        """Say why nothing above the eager tier can be tried; empty where it can."""
        if self._settings.tier == "eager":
            return "tier='eager' was asked for"
        if self._body.device.type != "cuda":
            return f"the model is on {self._body.device.type}, and capture needs CUDA"
        if getattr(self._body.model, "has_state", False):
            return "the model carries values from call to call, which a recording would not feed back"
        return ""

    def _run(self, batch: tuple[Any, ...], share: float) -> Outcome:
        if self._tier == "captured":
            outcome = self._replayed(batch, share)
            if outcome is not None:
                return outcome
        if self._climbing and self._windows >= _WARM_WINDOWS:
            return self._watched(batch, share)
        return self._eager(batch, share, self._position)

    def _eager(self, batch: tuple[Any, ...], share: float, position: int) -> Outcome:
        body = self._body
        if position == 0:
            body.clear()
        outcome = body.micro(batch, share)
        if position == self._settings.accumulate - 1:
            body.update(outcome, self._correction())
        return outcome

    def _correction(self) -> float:
        """Make up for micro-batches that were not as large as the first of their window."""
        expected = self._first_samples * self._settings.accumulate
        return (
            1.0
            if self._samples in (0, expected) or self._settings.accumulate == 1
            else expected / self._samples
        )

    def _replayed(self, batch: tuple[Any, ...], share: float) -> Outcome | None:
        """Replay a known batch; None sends it to the eager tier."""
        captured = self._captured
        assert captured is not None
        changed = captured.what_changed()
        if changed is not None:
            self._demote(changed)
            return None
        phase, shape = phase_of(self._position, self._settings.accumulate), signature(batch)
        correction = self._correction() if phase == "last" else 1.0
        if not captured.knows(phase, share, shape):
            self._mention_shape(batch)
            return None
        if correction != 1.0 and captured.update_inside:
            return None
        return captured.run(phase, share, shape, batch, correction)

    def _mention_shape(self, batch: tuple[Any, ...]) -> None:
        kind = "a ragged last batch" if is_tail(batch, self._usual_samples) else "a batch of another shape"
        self._journal.say(self._steps, "eager", f"{kind} ({num_samples(batch)} samples) runs uncaptured")

    def _show_captured_grads(self) -> None:
        if self._tier == "captured" and self._captured is not None:
            self._captured._show_grads()

    def _watched(self, batch: tuple[Any, ...], share: float) -> Outcome:
        """Run eagerly and remember the window, to run it again as a recording and compare."""
        if self._position == 0:
            self._window = []
            self._before = Snapshot(self._body)
        self._window.append((batch, share, signature(batch)))
        if self._captured is not None:
            return self._eager(batch, share, self._position)
        moment = Snapshot(self._body)
        try:
            return rehearse(lambda: self._eager(batch, share, self._position))
        except NotCapturable as error:
            moment.restore()
            self._stay_eager(f"the step cannot be captured: {error}")
            return self._eager(batch, share, self._position)

    def _end_window(self) -> None:
        self._position = 0
        self._updates += 1
        self._windows += 1
        if self._climbing:
            self._measure("eager")
            if self._before is not None:
                self._try()
        elif self._tier == "captured" and self._times["captured"] is None:
            self._measure("captured")
            self._settle()
        if self._bridge is not None:
            self._bridge.step()

    def _try(self) -> None:
        """Run the window again as recordings, from the same state, and compare every bit."""
        before, window = self._before, self._window
        assert before is not None
        self._before, self._window = None, []
        after = Snapshot(self._body)
        if self._captured is None:
            self._captured = CapturedTier(self._body, update_inside=self._update_inside)
        try:
            before.restore()
            self._replay_window(window)
        except NotCapturable as error:
            self._give_up(after, f"the step cannot be captured: {error}")
            return
        difference = after.first_difference(Snapshot(self._body))
        if difference is not None:
            self._give_up(after, f"the captured step differs from eager: {difference}")
            return
        after.restore()
        self._verified += 1
        if self._verified >= _VERIFIED_WINDOWS:
            self._promote()

    def _replay_window(self, window: list[tuple[tuple[Any, ...], float, Signature]]) -> None:
        captured = self._captured
        assert captured is not None
        for position, (batch, share, shape) in enumerate(window):
            phase = phase_of(position, self._settings.accumulate)
            if not captured.knows(phase, share, shape):
                before = Snapshot(self._body)
                captured.record(phase, share, shape, batch)
                before.restore()
            captured.run(phase, share, shape, batch, self._correction() if phase == "last" else 1.0)

    def _promote(self) -> None:
        self._tier, self._climbing, self._mark = "captured", False, None
        inside = "" if self._update_inside else f"; the update stays outside: {self._update_reason}"
        self._reason = f"equal to eager bit for bit over {self._verified} updates{inside}"
        self._journal.say(self._steps, "captured", self._reason)

    def _give_up(self, after: Snapshot, reason: str) -> None:
        after.restore()
        self._body.clear()
        self._stay_eager(reason)

    def _stay_eager(self, reason: str) -> None:
        self._captured, self._before, self._climbing, self._reason = None, None, False, reason
        self._journal.say(self._steps, "eager", reason)

    def _demote(self, reason: str) -> None:
        """Go back to eager, and climb again from there."""
        self._journal.say(self._steps, "eager", f"{reason}; the step is captured anew")
        self._captured, self._tier, self._climbing = None, "eager", True
        self._reason = ""
        self._verified = 0
        self._windows = _WARM_WINDOWS - 1
        self._before = None

    def _measure(self, tier: str) -> None:
        """Take the time of a few windows between two waits for the device."""
        if self._body.device.type != "cuda" or self._times[tier] is not None:
            return
        length = 2 if tier == "eager" else _MEASURED_WINDOWS
        if self._mark is None:
            torch.cuda.synchronize(self._body.device)
            self._mark = (self._windows, time.perf_counter())
        elif self._windows - self._mark[0] >= length:
            torch.cuda.synchronize(self._body.device)
            taken = (time.perf_counter() - self._mark[1]) / (self._windows - self._mark[0])
            self._times[tier] = taken / self._settings.accumulate
            self._mark = None

    def _settle(self) -> None:
        """Stay on the captured tier only where it was measured to be no slower."""
        eager, captured = self._times["eager"], self._times["captured"]
        if self._settings.tier == "auto" and eager and captured and captured > eager:
            self._tier, self._captured = "eager", None
            self._reason = (
                f"captured was measured slower: {captured * 1e3:.3f} ms against {eager * 1e3:.3f} ms"
            )
            self._journal.say(self._steps, "eager", self._reason)

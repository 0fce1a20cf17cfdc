"""`TrainStep`: the whole training step as one call, and on CUDA as one captured program."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.core import StepError
from flodl.optim import Schedule, ScheduleBridge, apply

from .batch import num_samples, signature
from .body import StepBody, StepFunction, check_parts
from .events import Journal, StepReport
from .ladder import Ladder
from .memory import memory_use
from .optimizer import prepare
from .runners import Micro, is_tail, phase_of
from .settings import Guard, Precision, StepSettings, Tail, Tier, TierChoice, Tune
from .tail import padded, with_mask


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
        schedule: Schedule | Callable[[int], float] | None = None,
        tier: TierChoice = "auto",
        tail: Tail = "eager",
        tune: Tune | None = None,
        tune_budget_s: float = 300.0,
        strict: bool = False,
        guard: Guard = "loss",
    ) -> None:
        self._settings = StepSettings(
            clip_norm=clip_norm,
            clip_value=clip_value,
            accumulate=accumulate,
            precision=precision,
            tier=tier,
            tail=tail,
            tune=tune,
            tune_budget_s=tune_budget_s,
            strict=strict,
            guard=guard,
        )
        check_parts(model, optimizer, step_fn)
        readiness = prepare(optimizer)
        function = with_mask(step_fn) if tail == "pad" else step_fn
        self._body = StepBody(model, optimizer, function, self._settings, readiness)
        self._bridge = None if schedule is None else apply(schedule, optimizer)
        self._journal = Journal()
        self._ladder = Ladder(self._body, self._settings, readiness, self._journal)
        self._steps = 0
        self._updates = 0
        self._position = 0
        self._first_samples = 0
        self._usual_samples = 0
        self._samples = 0
        self._values: Mapping[str, Tensor] = {}
        self._first_step_s: float | None = None

    @property
    def settings(self) -> StepSettings:
        """What the step was asked to do."""
        return self._settings

    @property
    def tier(self) -> Tier:
        """The tier that the next step runs on."""
        return self._ladder.tier

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

    @property
    def num_skipped(self) -> Tensor:
        """How many updates were skipped because something was not finite, as a count on the device."""
        return self._body.num_skipped

    @property
    def is_between_updates(self) -> bool:
        """Whether no window of accumulation is under way."""
        return self._position == 0

    @property
    def updates(self) -> int:
        """How many optimizer updates there were; a window of accumulation is one."""
        return self._updates

    @property
    def schedule(self) -> ScheduleBridge | None:
        """The bridge that moves the learning rate, where a schedule was given."""
        return self._bridge

    def means(self) -> dict[str, Tensor]:
        """Give the means of the loss and of the named values since `reset_means`, weighed by samples.

        They are on the device; nothing is waited for. Batches whose loss was not finite are left out.
        """
        return self._body.tally.means()

    def reset_means(self) -> None:
        """Start the means anew, as at the beginning of an epoch."""
        self._body.tally.reset()

    def __call__(self, *batch: Any) -> Tensor:
        lane = self._ladder.lane
        if lane is None or (loss := lane(batch)) is None:
            return self._long_way(batch)
        # The named values are where the recording put them the last time.
        self._steps += 1
        self._updates += 1
        if self._bridge is not None:
            self._bridge.step()
        return loss

    def _long_way(self, batch: tuple[Any, ...]) -> Tensor:
        started = time.perf_counter() if self._steps == 0 else 0.0
        samples = num_samples(batch)
        if self._position == 0:
            self._first_samples, self._samples = samples, 0
            self._usual_samples = max(self._usual_samples, samples)
        if self._settings.tail == "drop" and is_tail(batch, self._usual_samples):
            self._journal.say(self._steps, "dropped", "a ragged last batch, as tail='drop' asks")
            return torch.full((), torch.nan, device=self._body.device)
        self._samples += samples
        try:
            outcome = self._ladder.run(self._micro(batch, samples), self._steps)
        except BaseException:
            self._samples -= samples
            raise
        self._values = outcome.values
        for carrier in self._body.carriers:
            carrier.detach_state()  # type: ignore[operator]
        # A recording writes the next loss to the same place; what is given away is a copy.
        loss = outcome.loss.clone() if self._ladder.tier != "eager" else outcome.loss
        self._position += 1
        self._steps += 1
        if self._position == self._settings.accumulate:
            self._end_window()
        if started:
            self._first_step_s = time.perf_counter() - started
        return loss

    def flush(self) -> None:
        """Apply a window of accumulation that did not fill up, weighed by what it did get."""
        if self._position:
            self._ladder.show_grads()
            self._body.update(self._correction())
            self._end_window()

    def state_dict(self) -> dict[str, Any]:
        """Give what a resumed run needs beside model and optimizer: counts, schedule, scaler, means.

        Take it between two updates, not in the middle of a window of accumulation.
        """
        if self._position:
            raise StepError(
                f"a window of accumulation is half full ({self._position} of {self._settings.accumulate} "
                "micro-batches), and its gradients are not part of the state. Save after an update."
            )
        body = self._body
        return {
            "steps": self._steps,
            "updates": self._updates,
            "usual_samples": self._usual_samples,
            "num_skipped": int(body.num_skipped),
            "means": [[list(names), total.tolist()] for names, total in body.tally.totals.items()],
            "scaler": None if body.scaler is None else [tensor.item() for tensor in body.scaler.state()],
            "schedule": None if self._bridge is None else self._bridge.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; load model and optimizer first."""
        body = self._body
        if (state["scaler"] is None) != (body.scaler is None):
            raise StepError(
                f"the state was taken {'without' if state['scaler'] is None else 'with'} a loss scaler, and "
                f"precision={self._settings.precision!r} says otherwise. Resume with the same precision."
            )
        if (state["schedule"] is None) != (self._bridge is None):
            raise StepError(
                f"the state was taken {'without' if state['schedule'] is None else 'with'} a schedule. "
                "Resume with the schedule that the run had."
            )
        self._steps, self._updates, self._position = state["steps"], state["updates"], 0
        self._usual_samples = state["usual_samples"]
        body.num_skipped.fill_(state["num_skipped"])
        body.tally.load({tuple(names): numbers for names, numbers in state["means"]})
        if body.scaler is not None:
            for tensor, number in zip(body.scaler.state(), state["scaler"]):
                tensor.fill_(number)
        body.meet_optimizer_again()
        if self._bridge is not None:
            self._bridge.load_state_dict(state["schedule"])

    def close(self) -> None:
        """End a compilation that still runs beside the training."""
        self._ladder.close()

    def report(self) -> StepReport:
        """Say which tier runs, why, what it cost and what it gains."""
        ladder = self._ladder
        return StepReport(
            tier=ladder.tier,
            reason=ladder.why,
            steps=self._steps,
            updates=self._updates,
            captures=ladder.captures,
            compiles=ladder.num_compiles,
            memory=memory_use(self._body.device),
            eager_step_s=ladder.step_s.get("eager"),
            step_s=ladder.step_s.get(ladder.tier),
            promotion_cost_s=ladder.cost_s or None,
            first_step_s=self._first_step_s,
            skipped=int(self._body.num_skipped),
            events=tuple(self._journal.events),
        )

    def _micro(self, batch: tuple[Any, ...], samples: int) -> Micro:
        accumulate = self._settings.accumulate
        share = 1.0 if accumulate == 1 else samples / (self._first_samples * accumulate)
        if self._settings.tail == "pad":
            batch = padded(batch, self._usual_samples)
        phase = phase_of(self._position, accumulate)
        correction = self._correction() if phase == "last" else 1.0
        ragged = is_tail(batch, self._usual_samples)
        return Micro(batch, signature(batch), phase, share, correction, ragged)

    def _correction(self) -> float:
        """Make up for micro-batches that were not as large as the first of their window."""
        expected = self._first_samples * self._settings.accumulate
        return 1.0 if self._samples in (0, expected) else expected / self._samples

    def _end_window(self) -> None:
        self._position = 0
        self._updates += 1
        self._ladder.end_window(self._steps)
        if self._bridge is not None:
            self._bridge.step()

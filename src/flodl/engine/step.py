"""`TrainStep`: the whole training step as one call, and on CUDA as one captured program."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.core import ScheduleError, StepError
from flodl.core.integers import is_integer
from flodl.core.interrupts import uninterrupted
from flodl.optim import Schedule, ScheduleBridge, apply

from .batch.samples import Samples, ambiguous_samples, leading_lengths, num_samples
from .batch.signature import signature
from .device.memory import memory_use
from .optimizer.prepare import prepare
from .program.accumulation import Window
from .program.oom import update_strictly
from .program.program import StepBody, check_parts
from .program.ragged import UsualSize, padded, with_mask
from .program.runner import Micro, phase_of
from .program.saved_state import check_saved
from .report import Journal, StepReport
from .settings import Guard, Precision, StepFunction, StepSettings, Tail, Tier, TierChoice, Tune
from .tiers.controller import Ladder


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
        self._readiness = readiness
        self._ladder = Ladder(self._body, self._settings, readiness, self._journal)
        self._steps = 0
        self._updates = 0
        self._window = Window(accumulate)
        self._usual = UsualSize()
        # Whether somebody was told, or has told, what a batch weighs whose tensors differ in length.
        self._lengths_told = False
        self._values: Mapping[str, Tensor] = {}
        self._first_step_s: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Neither a recording nor compiled code can be copied or sent away; a copy climbs by itself.
        self._ladder.show_grads()
        state = {name: value for name, value in vars(self).items() if name != "_ladder"}
        if not self.is_between_updates:
            # Torch copies a parameter without its gradient, which the window under way has gathered.
            state["_grads"] = [parameter.grad for parameter in self._body.parameters]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        grads = state.get("_grads", [])
        vars(self).update({name: value for name, value in state.items() if name != "_grads"})
        for parameter, grad in zip(self._body.parameters, grads):
            parameter.grad = grad
        self._ladder = Ladder(self._body, self._settings, self._readiness, self._journal)

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
        """The norm of the last update's gradients before any clipping, on the device.

        It needs clip_norm; without, and before the first update, it is NaN.
        """
        return self._body.grad_norm.clone()

    @property
    def skipped(self) -> Tensor:
        """Whether the last update was skipped because loss or gradients were not finite, on the device."""
        return self._body.bad.bool()

    @property
    def num_skipped(self) -> Tensor:
        """How many updates were skipped because something was not finite.

        This is the live count on the device: it goes on with the steps. Keep `num_skipped.clone()`.
        """
        return self._body.num_skipped

    @property
    def is_between_updates(self) -> bool:
        """Whether no window of accumulation is under way."""
        return self._window.position == 0

    @property
    def steps(self) -> int:
        """How many batches it was trained on."""
        return self._steps

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

        They are on the device; nothing is waited for. Batches whose loss was not finite are left out, and
        so are values that are not single numbers. Until something has counted, a mean is NaN.
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

    def call(self, batch: tuple[Any, ...], *, samples: int | None) -> Tensor:
        """Run one step on a batch of so many samples, where its tensors do not begin with one row for each.

        >>> model = nn.GRU(3, 2)
        >>> step = TrainStep(
        ...     model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x: m(x)[0].square().mean()
        ... )
        >>> by_time = torch.zeros(7, 4, 3)
        >>> step.call((by_time,), samples=4).shape
        torch.Size([])
        """
        if not isinstance(batch, tuple | list):
            raise StepError(
                f"call was given a {type(batch).__name__}. Give what the step function takes as a tuple: "
                "call((x, y), samples=8)."
            )
        if samples is None:
            return self(*batch)
        if not is_integer(samples, at_least=1):
            raise StepError(f"samples={samples!r}. Give the number of samples in the batch, or None.")
        self._lengths_told = True
        if samples == num_samples(batch):
            return self(*batch)
        return self._long_way((*batch, Samples(samples)))

    def _long_way(self, batch: tuple[Any, ...]) -> Tensor:
        started = time.perf_counter() if self._steps == 0 else 0.0
        samples = num_samples(batch)
        if not self._lengths_told:
            self._say_if_lengths_differ(batch)
        ragged = self._usual.is_tail(samples, may_grow=self.is_between_updates)
        if ragged and self._settings.tail == "drop":
            self._journal.say(self._steps, "dropped", "a ragged last batch, as tail='drop' asks")
            # The next batch must come by here, so that it is known whether another small one follows.
            self._ladder.lane = None
            return torch.full((), torch.nan, device=self._body.device)
        self._meet_groups()
        self._window.count(samples)
        if self._window.accumulate > 1 and self.is_between_updates:
            self._body.tally.note()
        self._body.progress.begin()
        try:
            outcome = self._ladder.run(self._micro(batch, samples, ragged=ragged), self._steps)
            self._values = outcome.values
            for carrier in self._body.carriers:
                carrier.detach_state()
            # A recording writes the next loss to the same place; what is given away is a copy.
            loss = outcome.loss.clone() if self._ladder.tier != "eager" else outcome.loss
            with uninterrupted():
                is_full = self._count_micro()
            if is_full:
                self._end_window()
        except BaseException:
            with uninterrupted():
                self._after_error(samples, self._count_micro)
            raise
        if started:
            self._first_step_s = time.perf_counter() - started
        return loss

    def flush(self) -> None:
        """Apply a window of accumulation that did not fill up, weighed by what it did get."""
        if self.is_between_updates:
            return
        self._ladder.show_grads()
        self._meet_groups()
        self._body.progress.begin()
        try:
            update_strictly(self._body, self._window.correction)
            with uninterrupted():
                self._count_update()
            self._end_window()
        except BaseException:
            with uninterrupted():
                self._after_error(0, self._count_update)
            raise

    def give_up_window(self) -> None:
        """Forget a window of accumulation that is half full: its gradients, and its part of the means."""
        self._body.optimizer.zero_grad(set_to_none=True)
        if self._window.position:
            self._body.tally.go_back()
        self._window.close()

    def state_dict(self) -> dict[str, Any]:
        """Give what a resumed run needs beside model and optimizer: counts, schedule, scaler, means.

        Take it between two updates, not in the middle of a window of accumulation.
        """
        window = self._window
        if not self.is_between_updates:
            raise StepError(
                f"a window of accumulation is half full ({window.position} of {window.accumulate} "
                "micro-batches), and its gradients are not part of the state. Save after an update."
            )
        body = self._body
        return {
            "steps": self._steps,
            "updates": self._updates,
            "usual_samples": self._usual.samples,
            "after_tail": self._usual.after_tail,
            "num_skipped": int(body.num_skipped),
            "means": [[list(names), total.tolist()] for names, total in body.tally.totals.items()],
            "scaler": None if body.scaler is None else [tensor.item() for tensor in body.scaler.state()],
            "schedule": None if self._bridge is None else self._bridge.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; load model and optimizer first. What does not fit changes nothing."""
        body = self._body
        check_saved(
            state,
            with_scaler=body.scaler is not None,
            with_schedule=self._bridge is not None,
            precision=self._settings.precision,
        )
        body.meet_optimizer_again()
        if self._bridge is not None:
            try:
                self._bridge.load_state_dict(state["schedule"])
            except ScheduleError as error:
                raise StepError(f"the state's schedule does not fit: {error}") from error
        self._steps, self._updates = int(state["steps"]), int(state["updates"])
        self._window.close()
        # States of earlier versions do not say what the last batch was.
        self._usual = UsualSize(int(state["usual_samples"]), bool(state.get("after_tail", False)))
        body.num_skipped.fill_(state["num_skipped"])
        body.tally.load({tuple(names): numbers for names, numbers in state["means"]})
        if body.scaler is not None:
            for tensor, number in zip(body.scaler.state(), state["scaler"]):
                tensor.fill_(number)

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

    def _micro(self, batch: tuple[Any, ...], samples: int, *, ragged: bool = False) -> Micro:
        window = self._window
        share = window.share(samples)
        if self._settings.tail == "pad":
            batch, ragged = padded(batch, self._usual.samples), False
        phase = phase_of(window.position, window.accumulate)
        correction = window.correction if phase == "last" else 1.0
        return Micro(batch, signature(batch), phase, share, correction, ragged)

    def _say_if_lengths_differ(self, batch: tuple[Any, ...]) -> None:
        """Say once what the weight of a batch is taken from, where its tensors do not agree."""
        if len(lengths := leading_lengths(batch)) < 2:
            return
        self._lengths_told = True
        self._journal.say(self._steps, "samples", ambiguous_samples(lengths))

    def _meet_groups(self) -> None:
        if self._bridge is not None:
            self._bridge.add_new_groups()

    def _count_micro(self) -> bool:
        """Count a micro-batch; gives whether its window is full."""
        self._window.position += 1
        self._steps += 1
        is_full = self._window.is_full
        if is_full:
            self._count_update()
        self._body.progress.counted = True
        return is_full

    def _count_update(self) -> None:
        self._window.close()
        self._updates += 1
        self._body.progress.counted = True

    def _after_error(self, samples: int, count: Callable[[], object]) -> None:
        """Leave out a micro-batch whose forward failed; give up a window whose gradients were touched.

        What an interrupt came too late for is counted.
        """
        progress = self._body.progress
        is_last = self._window.position + 1 >= self._window.accumulate
        if progress.counted or progress.applied or (progress.added and not progress.touches and not is_last):
            if not progress.counted:
                count()
            if progress.applied:
                self._move_schedule()
        elif progress.touches or progress.added:
            self.give_up_window()
        else:
            self._window.leave_out(samples)
        progress.touches = False

    def _end_window(self) -> None:
        try:
            self._ladder.end_window(self._steps)
        finally:
            # Also where somebody interrupts a trial: the update is done.
            with uninterrupted():
                self._move_schedule()

    def _move_schedule(self) -> None:
        """Let the schedule follow an update, once."""
        if self._bridge is not None and not self._body.progress.moved:
            self._bridge.step()
        self._body.progress.moved = True

"""What one training step does, in order; every tier runs exactly this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.core import StepError
from flodl.core.interrupts import uninterrupted
from flodl.observe import LastValues

from ..batch.samples import num_samples, split_batch, why_not_splittable
from ..device.capturing import report_capturing
from ..mistakes.own_backward import check_own_backward, gradients_of
from ..optimizer.adam import FastAdam
from ..optimizer.prepare import Readiness
from ..reduction.gradients import GradientReduction, ReduceGradients
from ..settings import StepFunction, StepSettings
from .arguments import check_dtypes
from .outcome import Outcome, Part, Weight, joined, outcome_of, weighed
from .precision import LossScaler, computing_in
from .progress import Progress, Stage
from .running_means import RunningMeans
from .undo import ForwardUndo
from .update import Updater, parameters_of


@dataclass
class SideEffects:
    """What the step was seen to change besides parameters and buffers."""

    # Kept with their autograd history in attributes of modules, from step to step.
    lasting: list[Tensor] = field(default_factory=list)
    # Large tensors that the step writes to.
    written: list[Tensor] = field(default_factory=list)
    # Tensors outside the optimizer that receive gradients.
    foreign: list[Tensor] = field(default_factory=list)
    # Where modules store values to be read after the step, such as the tags of a graph.
    stores: list[LastValues] = field(default_factory=list)


@dataclass(eq=False)
class StepBody:
    """Forward, backward and update for one model, one optimizer and one step function."""

    model: nn.Module
    optimizer: Optimizer
    step_fn: StepFunction
    settings: StepSettings
    device: torch.device
    scaler: LossScaler | None
    means: RunningMeans
    updater: Updater
    undo: ForwardUndo
    # Averages the gradients over ranks before each update, if there are several.
    reduction: GradientReduction | None = None
    progress: Progress = field(default_factory=Progress)
    side_effects: SideEffects = field(default_factory=SideEffects)
    # Parameters of the model that the optimizer does not have.
    others: list[Tensor] = field(default_factory=list)
    # How many pieces a batch runs in because memory ran out.
    pieces: int = 1
    loss_dtype: torch.dtype | None = None
    # Whether forward and backward are compiled, and whether graph breaks leave Python between the parts.
    is_compiled: bool = False
    has_graph_breaks: bool = False

    @classmethod
    def create(
        cls,
        model: nn.Module,
        optimizer: Optimizer,
        step_fn: StepFunction,
        settings: StepSettings,
        readiness: Readiness,
        reduce_gradients: ReduceGradients | None = None,
    ) -> StepBody:
        """Return the body of a new step."""
        parameters = parameters_of(optimizer)
        if not parameters:
            raise StepError("the optimizer has no parameters. Pass it model.parameters().")
        if settings.clip_value is not None and any(p.is_complex() for p in parameters):
            raise StepError(
                f"clip_value={settings.clip_value} with a complex parameter: complex numbers have no order "
                "to clamp them by. Use clip_norm, which scales them."
            )
        check_dtypes(parameters, settings.precision)
        device = parameters[0].device
        scaler = LossScaler(device) if settings.precision == "fp16" else None
        means = RunningMeans(device)
        updater = Updater(optimizer, settings, readiness, bad=means.bad, scaler=scaler)
        body = cls(
            model, optimizer, step_fn, settings, device, scaler, means, updater, undo=ForwardUndo(model)
        )
        body.find_others()
        if reduce_gradients is not None:
            body.reduction = GradientReduction(reduce_gradients, model, means.bad)
        return body

    def compiled(self, step_fn: StepFunction, account: Callable[..., None] | None = None) -> StepBody:
        """Return the same step with a compiled step function, and compiled sums where `account` is given.

        Everything else is shared: parameters, optimizer, means, scaler, progress, side effects and saved
        statistics.
        """
        means = self.means if account is None else self.means.using(account)
        return replace(self, step_fn=step_fn, means=means, is_compiled=True)

    def separate(self, *, settings: StepSettings | None = None) -> StepBody:
        """Return the same step with statistics saved in its own memory, and perhaps other settings."""
        return replace(self, settings=settings or self.settings, undo=self.undo.separate())

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters that the optimizer updates."""
        return self.updater.parameters

    @property
    def bad(self) -> Tensor:
        """Above zero, on the device, if a loss or gradient of this window is not finite."""
        return self.means.bad

    def find_others(self) -> None:
        """Find the parameters of the model that the optimizer does not have; all tiers share the list."""
        in_optimizer = {*map(id, parameters_of(self.optimizer))}
        self.others[:] = [one for one in self.model.parameters() if id(one) not in in_optimizer]

    def clear_others(self) -> None:
        """Drop the gradients of these parameters, which another optimizer may have."""
        for parameter in self.others:
            if parameter.requires_grad:
                parameter.grad = None

    def start_window(self) -> None:
        """Drop the gradients before the first micro-batch of a window, and save what may be undone."""
        self.updater.clear_gradients()
        if self.others:
            self.clear_others()
        # Under an autocast of the caller, the cache would keep copies of the old weights.
        torch.clear_autocast_cache()
        if self.undo.has_effects:
            self.undo.start_window()

    def micro_batch(
        self, batch: tuple[Any, ...], share: float, *, samples: int, mask: Tensor | None, opens: bool
    ) -> Outcome:
        """Run forward, loss and backward; `share` is the weight of this micro-batch in its window."""
        self.progress.stage = Stage.FORWARD
        # With a mask, the number of real rows is known on the device only, whatever was recorded.
        weight: int | Tensor = samples if mask is None else mask.sum(dtype=torch.float64)
        if self.pieces == 1 or why_not_splittable(batch, samples):
            outcome = self._forward_and_backward(batch, mask, share)
        else:
            outcome = joined(self._parts(batch, mask, share, weight))
        self.loss_dtype = outcome.loss.dtype
        self.means.add(outcome.loss, outcome.values, weight=weight, opens=opens)
        self.progress.stage = Stage.ACCUMULATED
        return outcome

    def _parts(
        self, batch: tuple[Any, ...], mask: Tensor | None, share: float, total: int | Tensor
    ) -> list[Part]:
        """Run a batch in pieces, each weighted by its number of real rows."""
        if mask is None:
            assert isinstance(total, int)
            return [self._part(piece, share, total) for piece in split_batch(batch, self.pieces)]
        pieces = split_batch((*batch, mask), self.pieces)
        return [self._masked_part(rows, piece_mask, share, total) for *rows, piece_mask in pieces]

    def _part(self, piece: tuple[Any, ...], share: float, total: int) -> Part:
        rows = num_samples(piece)
        weight = rows / total if total else 1.0
        return Part(self._forward_and_backward(piece, None, share * weight), weight, rows)

    def _masked_part(self, piece: list[Any], mask: Tensor, share: float, total: int | Tensor) -> Part:
        weight = mask.sum(dtype=torch.float64) / total
        # A piece of padding only has weight zero; its mean over no rows would be NaN.
        outcome = self._forward_and_backward(tuple(piece), mask | ~mask.any(), weight * share)
        return Part(outcome, weight, len(mask))

    def _forward_and_backward(self, batch: tuple[Any, ...], mask: Tensor | None, share: Weight) -> Outcome:
        if self.device.type == "cuda":
            with report_capturing(self.device):
                return self._run(batch, mask, share)
        return self._run(batch, mask, share)

    def _run(self, batch: tuple[Any, ...], mask: Tensor | None, share: Weight) -> Outcome:
        # Before the first update, and without earlier micro-batches or pieces.
        is_first = not self.updater.started and all(p.grad is None for p in self.parameters)
        num_user_steps = self.updater.calls.num_user_steps
        if self.settings.precision == "fp32":
            outcome, loss = self._forward(batch, mask, share)
        else:
            with computing_in(self.settings.precision, self.device):
                outcome, loss = self._forward(batch, mask, share)
        if self.scaler is not None:
            loss = loss.float() * self.scaler.scale
        if self.settings.accumulate > 1 and self.updater.calls.left is not None:
            self.updater.calls.check_kept_in_step(may_wait=not self.settings.strict)
        if is_first:
            self.updater.calls.check_not_stepped(since=num_user_steps)
        left = gradients_of(self.parameters) if is_first else ()
        self.progress.stage = Stage.BACKWARD
        loss.backward()  # type: ignore[no-untyped-call]
        if left and self.scaler is None and isinstance(share, float) and not self.settings.strict:
            check_own_backward(left, share)
        values = {name: value.detach() for name, value in outcome.values.items()} if outcome.values else {}
        return Outcome(outcome.loss.detach(), values)

    def _forward(self, batch: tuple[Any, ...], mask: Tensor | None, share: Weight) -> tuple[Outcome, Tensor]:
        if mask is None:
            outcome = outcome_of(self.step_fn(self.model, *batch))
        else:
            outcome = outcome_of(self.step_fn(self.model, *batch, mask=mask))
        is_whole = not isinstance(share, Tensor) and share == 1.0
        return outcome, outcome.loss if is_whole else weighed(outcome.loss, share)

    def reduce(self, correction: float, samples: int) -> None:
        """Average the gradients of the window, which has this many samples here, over ranks."""
        assert self.reduction is not None
        self.progress.stage = Stage.REDUCING
        self.reduction.run(parameters_of(self.optimizer), correction=correction, samples=samples)

    def update(
        self, correction: float = 1.0, *, samples: int | None = None, quick: FastAdam | None = None
    ) -> None:
        """Unscale, clip, check that everything is finite, and update unless the flag on the device is set.

        Gradients are averaged over ranks first, unless `samples` is None because that is done already.
        `quick` is a faster form of the same update, for recordings.
        """
        if self.reduction is not None and samples is not None:
            self.reduce(correction, samples)
            correction = 1.0
        self.progress.stage = Stage.UPDATING
        if quick is not None and not self.updater.can_run(quick):
            quick = None
        self.updater.check_first_update(self.model)
        scale = self.updater.finish_gradients(correction, quick)
        with uninterrupted():
            self.updater.step(quick, scale)
            if self.undo.has_effects:
                self.undo.undo_where(self.means.bad)
            if self.scaler is not None:
                self.scaler.found_inf.copy_(self.means.bad)
                self.scaler.update()
            self.progress.stage = Stage.UPDATED

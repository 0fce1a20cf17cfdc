"""What one training step does, in order; every tier runs exactly this."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from flodl.core import StepError
from flodl.core.interrupts import uninterrupted
from flodl.optim import clip_grad_norm, clip_grad_value, gradient_values

from ..batch.samples import num_samples, split_batch, why_not_splittable, without_count
from ..device.capturing import report_capturing
from ..optimizer.adam import FastAdam
from ..optimizer.prepare import (
    Readiness,
    are_in_sync,
    can_skip_first_update,
    device_rates,
    is_custom,
    prepare,
    separate_first_updates,
    sync_rates,
    unfuse,
)
from ..settings import StepFunction, StepSettings
from .batch_norm import RunningStatistics
from .outcome import Outcome as Outcome
from .outcome import Part, Weight, joined, outcome_of, weighed
from .precision import LossScaler, computing_in
from .running_means import Tally


@dataclass
class Progress:
    """How far a step has come, for whoever has to tidy up after an error."""

    # Whether gradients or weights were being changed.
    touches: bool = False
    # Whether the gradients of the present micro-batch are in, its update was applied, both were counted, and
    # the schedule has moved.
    added: bool = False
    applied: bool = False
    counted: bool = False
    moved: bool = False

    def begin(self) -> None:
        """Begin with another call."""
        self.added = self.applied = self.counted = self.moved = False


class StepBody:
    """Forward, backward and update over one model, one optimizer and one step function."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        step_fn: StepFunction,
        settings: StepSettings,
        readiness: Readiness,
    ) -> None:
        self._prepared_state = optimizer.state
        self._groups: list[dict[str, Any]] = [*optimizer.param_groups]
        self.rates = device_rates(optimizer)
        self.model = model
        self.optimizer = optimizer
        self.step_fn = step_fn
        self.settings = settings
        self._prepared = self.parameters = held_by(optimizer)
        if not self.parameters:
            raise StepError("the optimizer has no parameters. Give it model.parameters().")
        if settings.clip_value is not None and any(p.is_complex() for p in self.parameters):
            raise StepError(
                f"clip_value={settings.clip_value} with a complex parameter: complex numbers have no order "
                "to clamp them by. Use clip_norm, which scales them."
            )
        self.device = self.parameters[0].device
        self.scaler = LossScaler(self.device) if settings.precision == "fp16" else None
        wide = any(p.dtype in (torch.float64, torch.complex128) for p in self.parameters)
        dtype = torch.float64 if wide else torch.float32
        self.grad_norm = torch.full((), torch.nan, dtype=dtype, device=self.device)
        self.num_skipped = torch.zeros((), dtype=torch.float64, device=self.device)
        self.tally = Tally(self.device)
        self.bad = self.tally.bad
        self.pieces = 1
        # Shared with the compiled twin of this body.
        self.progress = Progress()
        # The parameters that were updated, so that their state has begun from numbers that are finite.
        # Shared with the compiled twin.
        self._begun: set[Tensor] = set()
        self._num_states = 0
        # Which parameters were to learn in the last update; nothing where one has still to begin.
        self._learned: list[bool] = []
        self.loss_dtype: torch.dtype | None = None
        # Whether forward and backward were put through torch's compiler.
        self.fused = False
        # Whether the compiler had to cut it in pieces, with Python between them.
        self.is_split = False
        # What attributes of modules keep with a history from step to step.
        self.lasting: list[Tensor] = []
        # Large tensors that the step was seen to write to, beside its parameters and buffers.
        self.written: list[Tensor] = []
        # Tensors outside the optimizer that the step gives gradients to.
        self.foreign: list[Tensor] = []
        modules = list(model.modules())
        # As they were when the window opened, and before its present micro-batch.
        self._statistics = RunningStatistics(modules)
        self._statistics_lately = RunningStatistics(modules)
        self._gates = readiness.gates
        # Of a flag in the host's own memory it may ask; of what foreign code keeps nothing could be put back.
        self._host_asks = self.device.type == "cpu" or is_custom(optimizer)
        # Graphs, here or inside, that carry values from call to call.
        # A module that lacks the attribute is slow to say so; its class is not.
        self.carriers: list[Any] = [m for m in modules if hasattr(type(m), "has_state") and m.has_state]
        # Each takes back what its carrier carries since the window opened.
        self._carried: list[Callable[[Tensor], None]] = []

    @property
    def has_updated(self) -> bool:
        """Whether the last update was applied, and the next one begins nothing, as far as can be told."""
        return self._learned == [parameter.requires_grad for parameter in self.parameters]

    def meet_optimizer_again(self) -> None:
        """Prepare an optimizer whose state was loaded since, which undoes `prepare`, or which grew."""
        sync_rates(self.rates)
        if not are_in_sync(self.rates):
            self.rates = device_rates(self.optimizer)
        groups, held = self.optimizer.param_groups, held_by(self.optimizer)
        same = same_objects(groups, self._groups) and same_objects(held, self._prepared)
        was_cleared = len(self.optimizer.state) < self._num_states
        if not same or was_cleared or self.optimizer.state is not self._prepared_state:
            self._gates = prepare(self.optimizer).gates
            self._prepared_state, self._groups = self.optimizer.state, [*groups]
            self._begun.clear()
            self._learned = []
            self._prepared = self.parameters = held
            self.rates = device_rates(self.optimizer)

    def clear(self) -> None:
        """Drop the gradients before the first micro-batch of a window, and note the running statistics."""
        self.optimizer.zero_grad(set_to_none=True)
        # Within an autocast of the caller's: it would keep copies of the weights as they were.
        torch.clear_autocast_cache()
        self._statistics.note()
        self._carried = [carrier.keep_state() for carrier in self.carriers if hasattr(carrier, "keep_state")]

    def keep_statistics_apart(self) -> None:
        """Keep running statistics in memory of its own, where this is a copy of another body."""
        modules = list(self.model.modules())
        self._statistics, self._statistics_lately = RunningStatistics(modules), RunningStatistics(modules)

    def note_statistics(self) -> None:
        """Note the running statistics before a micro-batch that does not open its window."""
        self._statistics_lately.note()

    def undo_forward(self, *, opens: bool) -> None:
        """Undo what the forward of a micro-batch that failed did to the running statistics."""
        (self._statistics if opens else self._statistics_lately).put_back()

    def cut_finer(self, batch: tuple[Any, ...], *, opens: bool) -> str | None:
        """Undo a micro-batch that ran out of memory, to run in more pieces; else say what would help."""
        if why_not := why_not_splittable(batch):
            return (
                f"The batch cannot be run in pieces: {why_not}, so where to cut them is not known. "
                "Give smaller batches, or tensors with one row for each sample."
            )
        if self.pieces >= num_samples(batch):
            return (
                "One sample alone needs more memory than there is. Use precision='bf16', a smaller model, or "
                "torch.utils.checkpoint inside of it."
            )
        if opens:
            self.optimizer.zero_grad(set_to_none=True)
        elif self.progress.touches:
            return (
                "Memory ran out once the backward of a micro-batch had begun that was not the first of its "
                "window. Its gradients cannot be told from those before it, so the window was given up. "
                "Give smaller batches and a larger accumulate."
            )
        self.undo_forward(opens=opens)
        self.pieces = min(2 * self.pieces, num_samples(batch))
        return None

    def micro(self, batch: tuple[Any, ...], share: float, *, opens: bool) -> Outcome:
        """Run forward, loss and backward; `share` is this micro-batch's part of the window."""
        self.progress.touches = False
        samples: int | Tensor = num_samples(batch)
        if self.settings.tail == "pad":
            # The mask of the rows that are real; how many is known on the device, whatever was recorded.
            samples = batch[-1].sum(dtype=torch.float64)
        inputs = without_count(batch)
        if self.pieces == 1 or why_not_splittable(batch):
            outcome = self._piece(inputs, share)
        else:
            outcome = joined(
                [self._part(piece, share, samples) for piece in split_batch(inputs, self.pieces)]
            )
        self.loss_dtype = outcome.loss.dtype
        self.tally.add(outcome.loss, outcome.values, weight=samples, opens=opens)
        self.progress.touches, self.progress.added = False, True
        return outcome

    def _part(self, piece: tuple[Any, ...], share: float, samples: int | Tensor) -> Part:
        """Run one piece of a batch, weighed by its real rows."""
        rows = num_samples(piece)
        if isinstance(samples, int):
            weight: Weight = rows / samples if samples else 1.0
            return Part(self._piece(piece, share * weight), weight, rows)
        mask = piece[-1]
        weight = mask.sum(dtype=torch.float64) / samples
        # A piece of nothing but padding weighs nothing; its mean over no rows would not be a number.
        piece = (*piece[:-1], mask | ~mask.any())
        return Part(self._piece(piece, weight * share), weight, rows)

    def _piece(self, batch: tuple[Any, ...], share: Weight) -> Outcome:
        with report_capturing(self.device):
            return self._forward_and_backward(batch, share)

    def _forward_and_backward(self, batch: tuple[Any, ...], share: Weight) -> Outcome:
        with computing_in(self.settings.precision, self.device):
            outcome = outcome_of(self.step_fn(self.model, *batch))
            whole = not isinstance(share, Tensor) and share == 1.0
            loss = outcome.loss if whole else weighed(outcome.loss, share)
        if self.scaler is not None:
            loss = loss.float() * self.scaler.scale
        self.progress.touches = True
        loss.backward()  # type: ignore[no-untyped-call]
        return Outcome(outcome.loss.detach(), {name: v.detach() for name, v in outcome.values.items()})

    def update(self, correction: float = 1.0, *, quick: FastAdam | None = None) -> None:
        """Unscale, clip, look for what is not finite, and update unless the device flag says no.

        `quick` is another form of the same update, for recordings.
        """
        self.progress.touches = True
        # A group may have come within the window.
        self.parameters = held_by(self.optimizer)
        if not self._begun and not self._with_gradient():
            raise StepError(
                "no parameter of the optimizer got a gradient, so nothing would learn. Either it holds other "
                "tensors than the model computes with: give it model.parameters() after the model was moved "
                "or copied. Or the loss does not depend on them: they are frozen, or cut off by .detach() or "
                "torch.no_grad()."
            )
        # The values of sparse gradients are added up for it, which the optimizer does in another order.
        wanted = correction != 1.0 or self.scaler is not None or self.settings.guard == "gradients"
        grads = gradient_values(self.parameters) if wanted else []
        if correction != 1.0:
            torch._foreach_mul_(grads, correction)
        if self.scaler is not None:
            self.scaler.unscale(grads)
            torch.maximum(self.bad, self.scaler.found_inf, out=self.bad)
        self._clip(grads)
        with uninterrupted():
            if quick is None or self.begins_state() or not quick.launch():
                self.num_skipped.add_(self.bad)
                self._apply()
            self._statistics.put_back_where(self.bad)
            for put_back_where in self._carried:
                put_back_where(self.bad)
            if self.scaler is not None:
                self.scaler.found_inf.copy_(self.bad)
                self.scaler.update()
            self.progress.touches, self.progress.applied = False, True

    def _clip(self, grads: list[Tensor]) -> None:
        """Clip values, then the norm; what is measured and looked at is from before either."""
        settings = self.settings
        norm = None
        if settings.clip_value is not None and settings.clip_norm is not None:
            norm = clip_grad_norm(self.parameters, math.inf)
        elif settings.clip_norm is None and settings.guard == "gradients" and self.scaler is None and grads:
            self._note_if_not_finite(torch.stack(_norms(grads)).sum())
        if settings.clip_value is not None:
            clip_grad_value(self.parameters, settings.clip_value)
        if settings.clip_norm is not None:
            clipped = clip_grad_norm(self.parameters, settings.clip_norm)
            norm = clipped if norm is None else norm
            self.grad_norm.copy_(norm)
            self._note_if_not_finite(norm)

    def _note_if_not_finite(self, size: Tensor) -> None:
        torch.maximum(self.bad, (size - size != 0).to(self.bad.dtype), out=self.bad)

    def _apply(self) -> None:
        """Step the optimizer; where the flag is set, parameters and state stay as they are."""
        begins = self.begins_state()
        learning = self._with_gradient() if begins else []
        if any(p.grad is not None and p.grad.is_sparse for p in learning):
            unfuse(self.optimizer)
            self._gates = False
        if self.asks_first() and bool(self.bad):
            self._learned = [] if begins else self._learned
            return
        with separate_first_updates(self.optimizer) if begins else nullcontext():
            self._step_optimizer()
        self._begun.update(learning)
        self._num_states = len(self.optimizer.state)
        self._learned = [parameter.requires_grad for parameter in self.parameters]

    def begins_state(self) -> bool:
        """Say whether the update is some parameter's first."""
        return not self._begun.issuperset(self._with_gradient())

    def asks_first(self) -> bool:
        """Say whether the host asks before the update if it is to be skipped, which waits for the device.

        What a first update makes of the optimizer's state cannot always be put back.
        """
        if self._host_asks:
            return True
        return self.begins_state() and not can_skip_first_update(self.optimizer, gates=self._gates)

    def _with_gradient(self) -> list[Tensor]:
        return [parameter for parameter in self.parameters if parameter.grad is not None]

    def _step_optimizer(self) -> None:
        if self._gates:
            self.optimizer.found_inf = self.bad  # type: ignore[attr-defined]
            self.optimizer.grad_scale = None  # type: ignore[attr-defined]
            try:
                self.optimizer.step()
            finally:
                del self.optimizer.found_inf, self.optimizer.grad_scale  # type: ignore[attr-defined]
            return
        if self._host_asks:
            self.optimizer.step()
            return
        self._apply_masked()

    def _apply_masked(self) -> None:
        """Update everything, then put the old values back where the flag is set: no host read.

        A step count that an optimizer keeps on the host goes on; it cannot follow a flag on the device.
        """
        before = [tensor for tensor in self.mutable_state() if tensor.device == self.device]
        kept = [tensor.clone() for tensor in before]
        self.optimizer.step()
        bad = self.bad.bool()
        for tensor, old in zip(before, kept):
            torch.where(bad, old, tensor, out=tensor)

    def mutable_state(self) -> list[Tensor]:
        """Give the tensors that an update changes: parameters and optimizer state."""
        states = [
            value
            for parameter in self.parameters
            for value in self.optimizer.state.get(parameter, {}).values()
            if isinstance(value, Tensor)
        ]
        return [parameter.detach() for parameter in self.parameters] + states


def check_parts(model: object, optimizer: object, step_fn: object) -> None:
    """Refuse what cannot make a training step, before anything is touched."""
    if not isinstance(model, nn.Module):
        raise StepError(f"the model is a {type(model).__name__}. Write TrainStep(model, optimizer, step_fn).")
    if not isinstance(optimizer, Optimizer):
        raise StepError(
            f"the optimizer is a {type(optimizer).__name__}. Write TrainStep(model, optimizer, step_fn)."
        )
    if not callable(step_fn):
        raise StepError(f"the step function is a {type(step_fn).__name__}. Give a function of the model.")
    if isinstance(optimizer, LBFGS):
        raise StepError(
            "LBFGS evaluates the model several times in one update, which one step cannot hold. "
            "Use another optimizer, or call it in a loop of your own."
        )
    if (name := _needed_by_step(optimizer)) is not None:
        raise StepError(
            f"{type(optimizer).__name__}.step() needs a {name!r}: it evaluates the model itself during an "
            "update, which one step cannot hold. Use another optimizer, or call it in a loop of your own."
        )


def held_by(optimizer: Optimizer) -> list[Tensor]:
    """Give the parameters that an optimizer updates now."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def same_objects(one: Sequence[object], other: Sequence[object]) -> bool:
    """Say whether two lists hold the same objects in the same order."""
    return len(one) == len(other) and all(map(operator.is_, one, other))


def _norms(grads: list[Tensor]) -> list[Tensor]:
    """Give the norm of each gradient; those of float16 in float32, as in float16 they end at 65504.

    >>> _norms([torch.full((4,), 4e4, dtype=torch.float16)])
    [tensor(80000.)]
    """
    half = [grad for grad in grads if grad.dtype == torch.float16]
    if not half:
        return list(torch._foreach_norm(grads))
    others = [grad for grad in grads if grad.dtype != torch.float16]
    return [*torch._foreach_norm(half, dtype=torch.float32), *(_norms(others) if others else ())]


def _needed_by_step(optimizer: Optimizer) -> str | None:
    """Give the name of an argument that an optimizer's step cannot do without; None where there is none."""
    try:
        # Of the class: torch's schedulers put a function of their own in the place of the method.
        parameters = [*inspect.signature(type(optimizer).step).parameters.values()][1:]
    except (TypeError, ValueError):
        return None
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return next((p.name for p in parameters if p.default is p.empty and p.kind not in optional), None)

"""What one training step does, in order; every tier runs exactly this."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from flodl.core import StepError
from flodl.optim import clip_grad_norm, clip_grad_value

from .batch import num_samples, pieces_of
from .optimizer import Readiness, device_rates, prepare, take_rates
from .precision import LossScaler, computing_in
from .settings import StepSettings
from .tally import Tally

StepFunction = Callable[..., Any]


@dataclass(frozen=True)
class Outcome:
    """What a micro-batch gave: its loss and the values that the step function named."""

    loss: Tensor
    values: Mapping[str, Tensor]


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
        self._num_groups = len(optimizer.param_groups)
        self.rates = device_rates(optimizer)
        self.model = model
        self.optimizer = optimizer
        self.step_fn = step_fn
        self.settings = settings
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if not self.parameters:
            raise StepError("the optimizer has no parameters. Give it model.parameters().")
        self.device = self.parameters[0].device
        self.scaler = LossScaler(self.device) if settings.precision == "fp16" else None
        self.grad_norm = torch.zeros((), device=self.device)
        self.num_skipped = torch.zeros((), dtype=torch.float64, device=self.device)
        self.tally = Tally(self.device)
        self.bad = self.tally.bad
        self.pieces = 1
        self.loss_dtype: torch.dtype | None = None
        # Whether forward and backward were put through torch's compiler.
        self.fused = False
        modules = list(model.modules())
        self._statistics = _running_statistics(modules)
        self._kept_statistics = [torch.empty_like(buffer) for buffer in self._statistics]
        self._gates = readiness.gates
        # Graphs, here or inside, that carry values from call to call.
        # A module that lacks the attribute is slow to say so; its class is not.
        self.carriers = [m for m in modules if hasattr(type(m), "has_state") and m.has_state]

    def meet_optimizer_again(self) -> None:
        """Prepare an optimizer whose state was loaded since, which undoes `prepare`, or which grew."""
        take_rates(self.rates)
        groups = self.optimizer.param_groups
        if self.optimizer.state is not self._prepared_state or len(groups) != self._num_groups:
            self._gates = prepare(self.optimizer).gates
            self._prepared_state, self._num_groups = self.optimizer.state, len(groups)
            self.parameters = [p for group in groups for p in group["params"]]
            self.rates = device_rates(self.optimizer)

    def clear(self) -> None:
        """Drop the gradients before the first micro-batch of a window, and note the running statistics."""
        self.optimizer.zero_grad(set_to_none=True)
        if self._statistics:
            torch._foreach_copy_(self._kept_statistics, self._statistics)

    def put_statistics_back(self) -> None:
        """Undo what the forwards of this window did to the running statistics."""
        if self._statistics:
            torch._foreach_copy_(self._statistics, self._kept_statistics)

    def micro(self, batch: tuple[Any, ...], share: float, *, opens: bool) -> Outcome:
        """Run forward, loss and backward; `share` is this micro-batch's part of the window."""
        samples = num_samples(batch)
        if self.pieces == 1:
            outcome = self._piece(batch, share)
        else:
            parts = [(part, num_samples(part) / samples) for part in pieces_of(batch, self.pieces)]
            outcome = _joined([(self._piece(part, share * weight), weight) for part, weight in parts])
        self.loss_dtype = outcome.loss.dtype
        self.tally.add(outcome.loss, outcome.values, weight=samples, opens=opens)
        return outcome

    def _piece(self, batch: tuple[Any, ...], share: float) -> Outcome:
        with computing_in(self.settings.precision, self.device):
            outcome = _outcome(self.step_fn(self.model, *batch))
            loss = outcome.loss if share == 1.0 else outcome.loss * share
        if self.scaler is not None:
            loss = loss.float() * self.scaler.scale
        loss.backward()  # type: ignore[no-untyped-call]
        return Outcome(outcome.loss.detach(), {name: v.detach() for name, v in outcome.values.items()})

    def update(self, correction: float = 1.0) -> None:
        """Unscale, clip, look for what is not finite, and update unless the device flag says no."""
        grads = [p.grad for p in self.parameters if p.grad is not None]
        settings = self.settings
        if correction != 1.0:
            torch._foreach_mul_(grads, correction)
        if self.scaler is not None:
            self.scaler.unscale(grads)
            torch.maximum(self.bad, self.scaler.found_inf, out=self.bad)
        if settings.clip_value is not None:
            clip_grad_value(self.parameters, settings.clip_value)
        if settings.clip_norm is not None:
            norm = clip_grad_norm(self.parameters, settings.clip_norm)
            self.grad_norm.copy_(norm)
            self._note_if_not_finite(norm)
        elif settings.guard == "gradients" and self.scaler is None and grads:
            self._note_if_not_finite(torch.stack(torch._foreach_norm(grads)).sum())
        self.num_skipped.add_(self.bad)
        self._apply()
        if self._statistics:
            bad = self.bad.bool()
            for buffer, kept in zip(self._statistics, self._kept_statistics):
                torch.where(bad, kept, buffer, out=buffer)
        if self.scaler is not None:
            self.scaler.found_inf.copy_(self.bad)
            self.scaler.update()

    def _note_if_not_finite(self, size: Tensor) -> None:
        torch.maximum(self.bad, (size - size != 0).to(self.bad.dtype), out=self.bad)

    def _apply(self) -> None:
        """Step the optimizer; where the flag is set, parameters and state stay as they are."""
        if self._gates:
            self.optimizer.found_inf = self.bad  # type: ignore[attr-defined]
            self.optimizer.grad_scale = None  # type: ignore[attr-defined]
            try:
                self.optimizer.step()
            finally:
                del self.optimizer.found_inf, self.optimizer.grad_scale  # type: ignore[attr-defined]
            return
        if self.device.type == "cpu":
            # Reading a flag costs nothing on the host's own memory.
            if not bool(self.bad):
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
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if held and not any(id(parameter) in held for parameter in model.parameters()):
        raise StepError(
            "the optimizer holds none of the model's parameters, so nothing would learn. "
            "Give it model.parameters(), after the model was moved or copied."
        )


def _running_statistics(modules: list[nn.Module]) -> list[Tensor]:
    """Give the buffers that a forward changes: a batch that is not finite must not stay in them."""
    norms = [module for module in modules if isinstance(module, nn.modules.batchnorm._NormBase)]
    found = [buffer for norm in norms for buffer in (norm.running_mean, norm.running_var)]
    return [buffer for buffer in found if buffer is not None]


def _joined(parts: list[tuple[Outcome, float]]) -> Outcome:
    """Put the outcomes of parts together, each weighed by its share of the samples."""
    loss = torch.stack([outcome.loss * weight for outcome, weight in parts]).sum()
    names = parts[0][0].values
    values = {name: sum(outcome.values[name] * weight for outcome, weight in parts) for name in names}
    return Outcome(loss, {name: torch.as_tensor(value) for name, value in values.items()})


def _outcome(given: Any) -> Outcome:
    loss, values = given if isinstance(given, tuple) and len(given) == 2 else (given, {})
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise StepError(
            f"the step function gives {what}. Return one scalar loss, or (loss, {{name: value}})."
        )
    if not isinstance(values, Mapping):
        raise StepError(
            f"the second thing that the step function gives is a {type(values).__name__}. "
            "Return (loss, {name: value})."
        )
    if not loss.requires_grad:
        raise StepError(
            "the loss has no gradient. Compute it from the model's output, outside torch.no_grad(), and "
            "leave at least one parameter unfrozen."
        )
    named = {name: _on_device(name, value, loss) for name, value in values.items()}
    return Outcome(loss.reshape(()), named)


def _on_device(name: str, value: Any, loss: Tensor) -> Tensor:
    """Give a value as a tensor; a number is written by the device itself, which a recording can hold."""
    if name == "loss":
        raise StepError(
            "the step function names a value 'loss', which is what the loss itself is called. "
            "Choose another name, such as 'task_loss'."
        )
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bool | int | float):
        return torch.full((), value, device=loss.device)
    raise StepError(
        f"the step function names {name!r} with the value {value!r}. Give a number or a tensor for each name."
    )

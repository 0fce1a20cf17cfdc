"""The optimizer update: unscale, clip, skip it if something is not finite, step."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.optim import clip_grad_norm, clip_grad_value
from flodl.optim.clipping import gradient_values, norm_and_scale

from ..errors import NoGradient
from ..mistakes.optimizer_calls import REMEMBERED_UPDATES, LeftGradient, OptimizerCalls
from ..mistakes.parameters import check_first_gradients
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
from ..settings import StepSettings
from .arguments import missing_closure
from .finite import FiniteCheck
from .precision import LossScaler

_REQUIRES_GRAD = attrgetter("requires_grad")


class _Prepared(NamedTuple):
    """What the optimizer held when it was last prepared."""

    state: object
    groups: list[dict[str, Any]]
    parameters: list[Tensor]


class Updater:
    """Applies the accumulated gradients, unless `bad` on the device flags something that is not finite."""

    def __init__(
        self,
        optimizer: Optimizer,
        settings: StepSettings,
        readiness: Readiness,
        *,
        bad: Tensor,
        scaler: LossScaler | None,
    ) -> None:
        self.optimizer = optimizer
        self.settings = settings
        self.calls = OptimizerCalls()
        self.bad = bad
        self.scaler = scaler
        self.parameters = parameters_of(optimizer)
        self.rates = device_rates(optimizer)
        wide = any(p.dtype in (torch.float64, torch.complex128) for p in self.parameters)
        dtype = torch.float64 if wide else torch.float32
        self.grad_norm = torch.full((), torch.nan, dtype=dtype, device=bad.device)
        self.num_skipped = torch.zeros((), dtype=torch.float64, device=bad.device)
        self._check_gradients = FiniteCheck(bad)
        # Whether the optimizer reads the flag itself. Otherwise, whether the host reads it: because it is on
        # the CPU, or because the state of a foreign optimizer could not be restored.
        self.reads_flag = readiness.gates
        self.host_reads_flag = bad.device.type == "cpu" or is_custom(optimizer)
        self._prepared = _Prepared(optimizer.state, [*optimizer.param_groups], self.parameters)
        # Parameters that have been updated, so that their optimizer state started from finite values.
        self.started: set[Tensor] = set()
        self._num_states = 0
        # `requires_grad` of the parameters at the last update; empty if one has yet to start.
        self._learned: list[bool] = []
        # How many of the next updates raise if no parameter has a gradient; later ones may have none.
        self._num_to_check = 1

    @property
    def has_updated(self) -> bool:
        """Whether the last update was applied and the next one starts no parameter, as far as is known."""
        return self._learned == [*map(_REQUIRES_GRAD, self.parameters)]

    def refresh(self) -> None:
        """Prepare the optimizer again if its state was loaded, which undoes `prepare`, or if it grew."""
        optimizer, known = self.optimizer, self._prepared
        if self.rates:
            sync_rates(self.rates)
            if not are_in_sync(self.rates):
                self.rates = device_rates(optimizer)
        parameters: list[Tensor] = []
        for group in optimizer.param_groups:
            parameters += group["params"]
        if (
            optimizer.state is known.state
            and len(optimizer.state) >= self._num_states
            and len(parameters) == len(known.parameters)
            and len(optimizer.param_groups) == len(known.groups)
            and all(map(operator.is_, optimizer.param_groups, known.groups))
            and all(map(operator.is_, parameters, known.parameters))
        ):
            return
        self.reads_flag = prepare(optimizer).gates
        self._prepared = _Prepared(optimizer.state, [*optimizer.param_groups], parameters)
        self.started.clear()
        self._learned = []
        self.parameters = parameters
        self.rates = device_rates(optimizer)

    def clear_gradients(self) -> None:
        """Drop the gradients before the first micro-batch of a window."""
        optimizer, plain = self.optimizer, self.calls.plain_zero_grad
        if (
            type(optimizer).zero_grad is not Optimizer.zero_grad
            or vars(optimizer).get("zero_grad") is not plain
        ):
            self.drop_gradients()
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def drop_gradients(self) -> None:
        """Let the optimizer clear the gradients."""
        self.calls.is_own = True
        try:
            self.optimizer.zero_grad(set_to_none=True)
        finally:
            self.calls.is_own = False

    def remember_gradients(self, learning: Sequence[Tensor]) -> None:
        """Remember a gradient, to notice if it disappears or is applied again, and how many there are.

        Called for the first updates, where a call that was left over shows, and when the number changes.
        """
        calls, count = self.calls, len(learning)
        if count < calls.fewest:
            calls.check_at = 0
        if calls.fewest < 0 or count < calls.fewest:
            calls.fewest = count
        calls.num_remembered += 1
        calls.num_learning = -1 if calls.num_remembered < REMEMBERED_UPDATES else count
        if learning and (grad := learning[0].grad) is not None:
            calls.left = LeftGradient(learning[0], ref(grad), grad._version)

    def start_again(self, *, within_window: bool) -> None:
        """Check the first update again, as in a copy, whose step function may still use the original model.

        `within_window` says that this update also has gradients that were copied.
        """
        self.started.clear()
        self._learned = []
        self._num_to_check = 2 if within_window else 1

    def check_first_update(self, model: nn.Module) -> None:
        """Raise if the first update would learn nothing, or if the optimizer has other parameters."""
        if self.started and not self._num_to_check:
            return
        if not self.with_gradient():
            raise NoGradient(
                "no parameter of the optimizer received a gradient, so nothing would be learned. Either the "
                "optimizer has different tensors than the model: pass model.parameters() after the model "
                "was moved or copied. Or the step function uses a different model, such as a global one, or "
                "the original of a copied step: use its first argument. Or the loss does not depend on them: "
                "they are frozen, or cut off by .detach() or torch.no_grad()."
            )
        check_first_gradients(model, self.parameters)
        self._num_to_check = max(self._num_to_check - 1, 0)

    def finish_gradients(self, correction: float, quick: FastAdam | None) -> Tensor | None:
        """Correct, unscale and clip the gradients, and set the flag if one of them is not finite.

        The last is left to `quick` if it checks them itself. Return what `quick` has to multiply them by.
        """
        settings, parameters = self.settings, []
        for group in self.optimizer.param_groups:
            parameters += group["params"]
        # A group may have been added within the window.
        self.parameters = parameters
        # The values of sparse gradients are coalesced here, which the optimizer does in a different order.
        if correction != 1.0 or self.scaler is not None:
            self._correct(gradient_values(parameters), correction)
        # The loss scaler and the norm check every element, too.
        if settings.guard == "gradients" and settings.clip_norm is None and self.scaler is None:
            is_clamped = settings.clip_value is not None
            if is_clamped or quick is None or not quick.checks_gradients:
                self._check_gradients([p.grad for p in parameters if p.grad is not None])
        if settings.clip_norm is None and settings.clip_value is None:
            return None
        return self._clip(leaves_scale=quick is not None)

    def _correct(self, grads: list[Tensor], correction: float) -> None:
        if correction != 1.0:
            torch._foreach_mul_(grads, correction)
        if self.scaler is not None:
            self.scaler.unscale(grads)
            torch.maximum(self.bad, self.scaler.found_inf, out=self.bad)

    def _clip(self, *, leaves_scale: bool) -> Tensor | None:
        """Clip values, then the norm; the norm that is reported and checked is from before either.

        With `leaves_scale`, return the scale that clips the norm instead of multiplying by it.
        """
        settings = self.settings
        norm = scale = None
        if settings.clip_value is not None and settings.clip_norm is not None:
            norm = clip_grad_norm(self.parameters, math.inf)
        if settings.clip_value is not None:
            clip_grad_value(self.parameters, settings.clip_value)
        if settings.clip_norm is not None:
            if leaves_scale:
                clipped, scale = norm_and_scale(self.parameters, settings.clip_norm)
            else:
                clipped = clip_grad_norm(self.parameters, settings.clip_norm)
            norm = clipped if norm is None else norm
            self.grad_norm.copy_(norm)
            torch.maximum(self.bad, (norm - norm != 0).to(self.bad.dtype), out=self.bad)
        return scale

    def can_run(self, quick: FastAdam) -> bool:
        """Return whether a faster form of the update, for recordings, supports the current gradients."""
        return not self.starts_parameters() and quick.gather()

    def step(self, quick: FastAdam | None, scale: Tensor | None) -> None:
        """Step the optimizer, or `quick`; if the flag is set, parameters and state stay as they are.

        The scale of the gradients is only left to `quick`.
        """
        if quick is not None:
            quick.run(scale)
            return
        learning = [parameter for parameter in self.parameters if parameter.grad is not None]
        starts = not self.started.issuperset(learning)
        if starts and any(p.grad is not None and p.grad.is_sparse for p in learning):
            unfuse(self.optimizer)
            self.reads_flag = False
        if self.host_reads_flag:
            if bool(self.bad):
                self.num_skipped.add_(self.bad)
                self.calls.check_at = 0
                self._learned = [] if starts else self._learned
                return
        else:
            self.num_skipped.add_(self.bad)
            if starts and self.host_waits() and bool(self.bad):
                self._learned = []
                return
        if starts:
            with separate_first_updates(self.optimizer):
                self._step_optimizer()
            self.started.update(learning)
        else:
            self._step_optimizer()
        if len(learning) != self.calls.num_learning:
            self.remember_gradients(learning)
        self._num_states = len(self.optimizer.state)
        self._learned = [*map(_REQUIRES_GRAD, self.parameters)]

    def starts_parameters(self) -> bool:
        """Return whether the update is the first one of some parameter."""
        return not self.started.issuperset(self.with_gradient())

    def host_waits(self) -> bool:
        """Return whether the host reads the flag before the update, which waits for the device.

        The optimizer state that a first update creates cannot always be restored.
        """
        if self.host_reads_flag:
            return True
        return self.starts_parameters() and not can_skip_first_update(self.optimizer, gates=self.reads_flag)

    def with_gradient(self) -> list[Tensor]:
        """Return the parameters that have a gradient."""
        return [parameter for parameter in self.parameters if parameter.grad is not None]

    def _step_optimizer(self) -> None:
        """Step the optimizer; if nothing else reads the flag, restore the old values where it is set.

        That takes no host sync, but a step count that an optimizer keeps on the host advances all the same.
        """
        optimizer, calls, reads_flag = self.optimizer, self.calls, self.reads_flag
        kept = () if reads_flag or self.host_reads_flag else self._copies()
        if reads_flag:
            optimizer.found_inf = self.bad  # type: ignore[attr-defined]
            optimizer.grad_scale = None  # type: ignore[attr-defined]
        calls.is_own = True
        try:
            if vars(optimizer).get("step") is calls.plain_step:
                type(optimizer).step(optimizer)
            else:
                optimizer.step()
        except Exception as error:
            if (explained := missing_closure(optimizer, error)) is not None:
                raise explained from error
            raise
        finally:
            calls.is_own = False
            if reads_flag:
                del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]
        if kept:
            bad = self.bad.bool()
            for tensor, old in kept:
                torch.where(bad, old, tensor, out=tensor)

    def _copies(self) -> list[tuple[Tensor, Tensor]]:
        """Return the tensors on the device that an update changes, each with a copy."""
        return [(one, one.clone()) for one in self.mutable_state() if one.device == self.bad.device]

    def mutable_state(self) -> list[Tensor]:
        """Return the tensors that an update changes: parameters and optimizer state."""
        states = [
            value
            for parameter in self.parameters
            for value in self.optimizer.state.get(parameter, {}).values()
            if isinstance(value, Tensor)
        ]
        return [parameter.detach() for parameter in self.parameters] + states


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters that an optimizer updates now."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def same_objects(one: Sequence[object], other: Sequence[object]) -> bool:
    """Return whether two lists hold the same objects in the same order."""
    return len(one) == len(other) and all(map(operator.is_, one, other))

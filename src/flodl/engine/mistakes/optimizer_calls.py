"""Notices `optimizer.step()` and `optimizer.zero_grad()` in a loop whose `TrainStep` already calls them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor
from torch.optim import Optimizer

from flodl.core import StepError
from flodl.core.usage.tracebacks import hide_own_frames

from ..device.tensors import stacked_by_device
from ..other_steps import sharing_gradients
from .step_function import signature_text

# Gradients are remembered this many times: a call that was left over in a loop is made in the first updates.
REMEMBERED_UPDATES = 16

# Is not any method.
_NEVER = object()


def _no_optimizer() -> None:
    return None


class AccumulationWindow(Protocol):
    """How many micro-batches of an update there are, and how many there were so far."""

    accumulate: int
    position: int


class LeftGradient(NamedTuple):
    """A gradient that a step has left in a parameter, and how often it had been written to."""

    parameter: Tensor
    grad: weakref.ref[Tensor]
    version: int
    # How many micro-batches of an open window it has; 0 after an update.
    position: int = 0

    def is_unchanged(self) -> bool:
        """Return whether the parameter still has this gradient, and nothing has written to it."""
        grad = self.parameter.grad
        return grad is not None and grad is self.grad() and grad._version == self.version


class OptimizerCalls:
    """Raises if the user steps or clears the optimizer of a `TrainStep` where that spoils an update.

    The methods of the optimizer are wrapped; the step itself calls the original ones, so a step costs nothing
    more. Your own update, from your own gradients, is allowed between two updates.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    >>> calls = OptimizerCalls()
    >>> calls.watch(optimizer, SimpleNamespace(accumulate=4, position=1))
    >>> optimizer.zero_grad()
    Traceback (most recent call last):
    flodl.core.errors.StepError: optimizer.zero_grad() was called after 1 of 4 micro-batches ...
    """

    def __init__(self) -> None:
        self.window: AccumulationWindow | None = None
        self._optimizer: Callable[[], Optimizer | None] = _no_optimizer
        self.plain_step: object = _NEVER
        self.plain_zero_grad: object = _NEVER
        # Whether the step itself makes the call.
        self.is_own = False
        self.left: LeftGradient | None = None
        # How often the user has called optimizer.step().
        self.num_user_steps = 0
        # Whether no piece of the current batch has run, if it is split because memory ran out.
        self._is_first_piece = False
        # How many parameters received a gradient, the fewest so far, and how many updates were looked at.
        self.num_learning = -1
        self.fewest = -1
        self.num_remembered = 0
        # The step at which the parameters of the model are checked: soon, if one gets no gradient any more.
        self.check_at = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # Neither wrapped methods nor weak references can be copied; `watch` wraps the methods of the copy.
        return OptimizerCalls, ()

    def watch(self, optimizer: Optimizer, window: AccumulationWindow) -> None:
        """Wrap the methods of an optimizer; several steps may share it."""
        self.window = window
        self._optimizer = weakref.ref(optimizer)
        self.plain_step = _wrapped(optimizer, "step", self)
        self.plain_zero_grad = _wrapped(optimizer, "zero_grad", self)

    def check_kept(self) -> None:
        """Raise if the gradients of the earlier micro-batches of the window are gone or were changed."""
        self._is_first_piece = True
        is_changed = self._is_changed()
        if self._is_cleared() or (is_changed and self._are_zeros()):
            raise StepError(
                f"the gradients of {self._earlier} were cleared, so they would be missing from the update. "
                f"{self._who_clears()} To drop a window on purpose, call step.give_up_window()."
            )

        if is_changed:
            raise StepError(
                f"the gradients of {self._earlier} were changed after the step, so the update would not be "
                "that of the whole window. Remove clip_grad_norm_(), clip_grad_value_() and anything else "
                "that writes to .grad, such as a backward() of your own: a TrainStep clips the gradients of "
                "the window with clip_norm=… or clip_value=…. To change the gradients of each micro-batch, "
                "use parameter.register_hook. If a step of another model did it, because its loss goes "
                "through this one, call this one there with detached weights: "
                "torch.func.functional_call(model, {name: p.detach() for name, p in "
                "model.named_parameters()}, x)."
            )

    def remember_again(self) -> None:
        """Remember the gradient after a further micro-batch of the window, which has written to it."""
        if self.left is None or self.window is None:
            return
        parameter, grad = self.left.parameter, self.left.parameter.grad
        if grad is not None:
            self.left = LeftGradient(parameter, weakref.ref(grad), grad._version, self.window.position + 1)

    def check_kept_in_step(self, *, may_wait: bool) -> None:
        """Raise if the step function has cleared the gradients of the earlier micro-batches of the window.

        Whether they were set to zero is only known if the host may wait for the device.
        """
        is_first = self.window is None or self.window.position == 0
        is_cleared, self._is_first_piece = self._is_cleared(may_wait=may_wait), False
        if not is_first and is_cleared:
            raise StepError(
                f"the step function cleared the gradients of {self._earlier}, so they would be missing from "
                "the update. For gradients of its own, as for adversarial examples, use "
                "torch.autograd.grad(loss, x), which leaves .grad alone, instead of backward() and "
                "model.zero_grad(). If that is not possible, put back the .grad of each parameter after it."
            )

    def check_not_stepped(self, *, since: int) -> None:
        """Raise if the user has called optimizer.step() since then: in the step function."""
        if self.num_user_steps > since:
            raise StepError(
                "the step function called optimizer.step(), so each batch would update the weights twice. "
                "Remove zero_grad(), backward() and optimizer.step() from the step function, and return the "
                "loss: a TrainStep does all of it. For several optimizers, use one TrainStep for each."
            )

    def _is_cleared(self, *, may_wait: bool = True) -> bool:
        """Return whether the gradients of the earlier micro-batches are gone, or set to zero.

        Zeros are looked for after the first micro-batch: later, the step itself has written to them, too.
        """
        left, window = self.left, self.window
        if left is None:
            return False
        if left.parameter.grad is None:
            # Freezing a part of a graph clears its gradients, which nothing would apply.
            return left.parameter.requires_grad
        if window is None or window.position != 1 or not self._is_first_piece:
            return False
        return may_wait and not left.is_unchanged() and self._are_zeros()

    def _is_changed(self) -> bool:
        """Return whether something has written to the gradients since the last micro-batch."""
        left, window = self.left, self.window
        if left is None or window is None or left.parameter.grad is None:
            return False
        return left.position == window.position and not left.is_unchanged()

    def _are_zeros(self) -> bool:
        if (optimizer := self._optimizer()) is None:
            return False
        grads = [one.grad for group in optimizer.param_groups for one in group["params"]]
        return not any(
            bool(found.any()) for found in stacked_by_device(one.any() for one in grads if one is not None)
        )

    def check(self, name: str) -> None:
        """Raise if a call by the user would spoil an update."""
        if self.is_own or self.window is None:
            return
        if name == "step":
            self.num_user_steps += 1
        if self.window.position > 0:
            effect = "applied too early" if name == "step" else "lost"
            raise StepError(
                f"optimizer.{name}() was called after {self._earlier}: their gradients would be {effect}. A "
                f"TrainStep clears the gradients and applies the update itself. Remove optimizer.{name}(). "
                "To end a window early, call step.flush() or step.give_up_window()."
            )
        if name == "zero_grad":
            self.left = None
        elif self.left is not None and self.left.is_unchanged():
            raise StepError(
                "optimizer.step() was called after a TrainStep, which has already applied these gradients: "
                "they would be applied twice. Remove optimizer.step(), and zero_grad() and backward() too: "
                "step(x, y) does all of it. For your own update, call optimizer.zero_grad() and "
                "backward() first."
            )

    def _who_clears(self) -> str:
        """Return the advice for what clears gradients: another step of the program, or the program itself."""
        found = None if self.left is None else sharing_gradients(self, self.left.parameter)
        if found is None:
            what = "model.zero_grad() and anything else that clears gradients"
            return f"Remove {what}: a TrainStep does this itself."
        other, is_trained = found
        if is_trained:
            why = (
                "has the same parameters in its optimizer, and clears their gradients when its own window "
                "begins: call flush() on this step before you call that one."
            )
        else:
            why = (
                "has the same model, and clears the gradients of all of it when its own window begins: pass "
                "each step only the part of the model that its optimizer trains, such as model.actor and "
                "model.critic."
            )
        told = f"The TrainStep of {signature_text(other._body.step_fn)} {why}"
        return f"{told} If the program also clears gradients itself, remove that."

    @property
    def _earlier(self) -> str:
        window = self.window
        assert window is not None
        return f"{window.position} of {window.accumulate} micro-batches of an accumulation window"


class WatchedMethod:
    """A method of one optimizer that the user may call; it asks every step that owns the optimizer first."""

    def __init__(self, optimizer: Optimizer, name: str) -> None:
        # A strong reference would keep the optimizer alive until Python's garbage collector runs.
        self._optimizer = weakref.ref(optimizer)
        self._name = name
        # Of the instance, if something else has wrapped the method, such as one of torch's schedulers.
        self.inner: Callable[..., Any] | None = vars(optimizer).get(name)
        self.owners: list[weakref.ref[OptimizerCalls]] = []
        # Such as the mark of torch's schedulers, which look for it.
        vars(self).update(vars(self.inner) if hasattr(self.inner, "__dict__") else {})
        self.__name__ = name
        # As `functools.wraps` sets it, so that the original method can be found.
        self.__wrapped__ = self.inner or getattr(type(optimizer), name)

    @property
    def __func__(self) -> Callable[..., Any]:
        """The function of the bound method, which torch's schedulers wrap."""

        def method(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            return self(*args, **kwargs)

        method.__wrapped__ = self  # type: ignore[attr-defined]
        return method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method of the optimizer."""
        try:
            for owner in self.owners:
                if (calls := owner()) is not None:
                    calls.check(self._name)
        except StepError as error:
            hide_own_frames(error)
            raise
        if self.inner is not None:
            return self.inner(*args, **kwargs)
        optimizer = self._optimizer()
        return getattr(type(optimizer), self._name)(optimizer, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # An optimizer that copies all of its attributes gets the method of its class.
        return getattr, (self._optimizer(), self._name)


def _wrapped(optimizer: Optimizer, name: str, calls: OptimizerCalls) -> object:
    """Add an owner to the wrapped method of an optimizer; return it if the original is that of the class."""
    mark = f"_flodl_{name}"
    method = vars(optimizer).get(mark)
    if not isinstance(method, WatchedMethod):
        method = WatchedMethod(optimizer, name)
        vars(optimizer)[mark] = vars(optimizer)[name] = method
    method.owners[:] = [owner for owner in method.owners if owner() is not None]
    method.owners.append(weakref.ref(calls))
    return method if method.inner is None else _NEVER

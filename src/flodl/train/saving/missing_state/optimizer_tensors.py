"""Tensors that an optimizer keeps in plain attributes, which its state_dict does not contain."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from flodl.core import log

from .optimizer_counters import LOADING, methods_of
from .tensors import is_among, tensors_in

_HOLDERS = (Tensor, dict, list, tuple, deque, type(None))
_TORCH = ("state", "param_groups", "defaults")
# Slow weights, as in Lookahead, are used in every fifth to tenth update.
_NUM_UPDATES = 10


class OptimizerTensors:
    """Compare the tensors in attributes of an optimizer, also in dicts and lists, with those at the start.

    Only those that later updates depend on count: copies of the optimizer make some with the current tensors
    and with those of the start. A norm or a gradient that is only kept changes nothing.

    >>> class Momentum(torch.optim.SGD):
    ...     __module__ = "mine"
    ...
    ...     @torch.no_grad()
    ...     def step(self, closure=None):
    ...         for p in self.param_groups[0]["params"]:
    ...             p -= self.buffers.setdefault(p, torch.zeros_like(p)).mul_(0.9).add_(p.grad)
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = Momentum([weight])
    >>> optimizer.buffers = {}
    >>> tensors = OptimizerTensors(optimizer)
    >>> weight.grad = torch.ones(2)
    >>> optimizer.step()
    >>> [text[:54] for text in tensors.warnings()]
    ["the optimizer Momentum keeps tensors in 'buffers', and"]
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._codes = dict(methods_of(optimizer))
        self._before: dict[str, Any] = {}
        if self._codes:
            known: dict[int, Any] = {id(each): each for each in _parameters_of(optimizer)}
            self._before = {name: copy.deepcopy(each, known) for name, each in _holders(optimizer)}

    def warnings(self) -> Iterator[str]:
        """Yield a warning if tensors have changed, and nothing saves and loads them."""
        if not (names := self._unsaved()):
            return
        try:
            lost = names if self._matters(names) else []
        except Exception as error:  # raised by the code of a user, or the copies do not fit into the memory
            log.debug("the search for tensors of the optimizer: %s: %s", type(error).__name__, error)
            return
        if lost:
            yield (
                f"the optimizer {type(self._optimizer).__name__} keeps tensors in "
                f"{' and '.join(map(repr, lost))}, and no save contains them: a resumed run would start with "
                "the initial values there. Keep them in self.state[parameter], which state_dict() contains: "
                "self.state[parameter]['buffer']."
            )

    def _unsaved(self) -> list[str]:
        """Return the attributes whose tensors have changed and are in no state_dict."""
        loading = {name for one in LOADING if one in self._codes for name in self._codes[one].co_names}
        read = {
            name for method, code in self._codes.items() if method != "__init__" for name in code.co_names
        }
        changed = {
            name: found
            for name, each in _holders(self._optimizer)
            if name in read and name not in loading
            if (found := self._changed(each, self._before.get(name)))
        }
        if not changed:
            return []
        saved = [*tensors_in(self._optimizer.state_dict()), *_parameters_of(self._optimizer)]
        return [name for name, found in changed.items() if not is_among(found[0], saved)]

    def _changed(self, now: Any, before: Any) -> list[Tensor]:
        own, earlier = list(tensors_in(now)), list(tensors_in(before))
        if len(own) == len(earlier):
            own = [one for one, other in zip(own, earlier) if not _is_equal(one, other)]
        # Scalars say the least: another one may have the same value.
        return sorted(own, key=lambda each: -each.numel())

    def _matters(self, names: list[str]) -> bool:
        """Return whether the next updates differ without the tensors in these attributes."""
        one, _ = _copied(self._optimizer, {})
        other, before = _copied(self._optimizer, self._before)
        for name in names:
            if name in before:
                setattr(other, name, before[name])
            else:
                delattr(other, name)
        for number in range(_NUM_UPDATES):
            for each in (one, other):
                _update(each, number)
            pairs = zip(_parameters_of(one), _parameters_of(other), strict=True)
            if not all(_is_equal(*pair) for pair in pairs):
                return True
        return False


def _holders(optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an optimizer that may hold tensors, without those of torch."""
    for name, value in vars(optimizer).items():
        if isinstance(value, _HOLDERS) and name not in _TORCH and not name.startswith("_optimizer_"):
            yield name, value


def _parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _is_equal(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and torch.equal(one.to(other.device), other))


def _copied(optimizer: Optimizer, before: Mapping[str, Any]) -> tuple[Optimizer, dict[str, Any]]:
    """Return a copy of an optimizer with parameters of its own, and the earlier values for it.

    `copy.deepcopy` of an optimizer leaves out the attributes of a subclass.
    """
    kept = {
        name: each
        for name, each in vars(optimizer).items()
        if name != "step" and not name.startswith("_optimizer_")
    }
    own, earlier = copy.deepcopy((kept, dict(before)))
    # Without hooks, which may be those of a training step.
    hooks = {name: type(each)() for name, each in vars(optimizer).items() if name.startswith("_optimizer_")}
    copied: Optimizer = object.__new__(type(optimizer))
    copied.__dict__.update(own | hooks)
    return copied, earlier


def _update(optimizer: Optimizer, number: int) -> None:
    """Make an update with gradients and random numbers that depend on its number only."""
    # manual_seed sets the seed of every device, including those without parameters.
    num_devices = torch.cuda.device_count() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(range(num_devices)):
        torch.manual_seed(number)
        for group in optimizer.param_groups:
            # A warm-up may begin with a rate of 0.
            if "lr" in group and not group["lr"]:
                group["lr"] = 1e-3
            for each in group["params"]:
                each.grad = torch.randn_like(each) if each.requires_grad else None
        optimizer.step()

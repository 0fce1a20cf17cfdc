"""Counters that an optimizer keeps in plain attributes, which its state_dict does not contain."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from torch.optim import Optimizer

LOADING = ("load_state_dict", "__setstate__")


class OptimizerCounters:
    """Compare the integers of an optimizer with those at the start.

    Other attributes are not looked at: most are values of the last step, such as a norm, which the next one
    computes again.

    >>> import torch
    >>> class EveryFifth(torch.optim.SGD):
    ...     __module__ = "mine"
    ...
    ...     def step(self, closure=None):
    ...         self.count += 1
    ...         return super().step(closure)
    >>> optimizer = EveryFifth([torch.zeros(1)])
    >>> optimizer.count = 0
    >>> counters = OptimizerCounters(optimizer)
    >>> optimizer.step()
    >>> [text[:53] for text in counters.warnings()]
    ["the optimizer EveryFifth counts in 'count', and no sa"]
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._before = {name: value for name, value in vars(optimizer).items() if type(value) is int}

    def warnings(self) -> Iterator[str]:
        """Yield a warning if a counter has risen, and nothing saves and loads it."""
        own, codes = vars(self._optimizer), dict(methods_of(self._optimizer))
        risen = [name for name, value in self._before.items() if own.get(name, 0) > value]
        counters = [name for name in risen if any(_counts(code, name) for code in codes.values())]
        loading = {name for one in LOADING if one in codes for name in codes[one].co_names}
        known = loading.union(_keys_in(self._optimizer.state_dict())) if counters else loading
        if lost := [name for name in counters if name not in known and name.lstrip("_") not in known]:
            names, them = " and ".join(map(repr, lost)), "it" if len(lost) == 1 else "them"
            yield (
                f"the optimizer {type(self._optimizer).__name__} counts in {names}, and no save contains "
                f"{them}: a resumed run would start with the initial value. Keep {them} in the parameter "
                "groups, which state_dict() contains: group['count'] += 1."
            )


def methods_of(optimizer: Optimizer) -> Iterator[tuple[str, CodeType]]:
    """Yield the names and the code of the methods that are not torch's."""
    for kind in reversed(type(optimizer).__mro__):
        if kind.__module__.partition(".")[0] != "torch":
            for name, value in vars(kind).items():
                if inspect.isfunction(value):
                    # Torch wraps `step`, to profile it.
                    yield name, inspect.unwrap(value).__code__


def _counts(code: CodeType, name: str) -> bool:
    """Return whether code reads an attribute before it assigns it, as `self.count += 1` does."""
    is_read = False
    for step in dis.get_instructions(code):
        if step.argval == name and step.opname == "LOAD_ATTR":
            is_read = True
        elif step.argval == name and step.opname == "STORE_ATTR" and is_read:
            return True
    return False


def _keys_in(state: Any) -> set[str]:
    """Return the keys of a nested state."""
    if isinstance(state, dict):
        own = {key for key in state if isinstance(key, str)}
        return own.union(*map(_keys_in, state.values()))
    return set().union(*map(_keys_in, state)) if isinstance(state, list | tuple) else set()

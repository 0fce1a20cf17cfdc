"""Finds torch schedulers that a hook steps and that no save contains."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from flodl.core.formats import a_type

from .hooks import HOOKS


def unsaved_schedulers(callbacks: Iterable[Any]) -> Iterator[str]:
    """Yield a warning for each scheduler that a callback without state_dict steps.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    >>> def on_step_end():
    ...     scheduler.step()
    >>> [text[:41] for text in unsaved_schedulers([on_step_end])]
    ['the hook on_step_end steps a StepLR, whos']
    """
    every = list(callbacks)
    saved = [one for hook in every if hasattr(hook, "state_dict") for one in _schedulers_of(hook)]
    for hook in every:
        codes = [function.__code__ for function in _codes(hook)]
        if hasattr(hook, "state_dict") or not any("step" in code.co_names for code in codes):
            continue
        if any(map(_sets_position, codes)):
            continue
        found = [one for one in _schedulers_of(hook) if not any(one is other for other in saved)]
        if found:
            name = getattr(hook, "__name__", type(hook).__name__)
            yield (
                f"the hook {name} steps {a_type(found[0])}, whose state is in no save: a "
                "resumed run would start it from the beginning. Use a hook class with state_dict and "
                "load_state_dict that are those of the scheduler, or pass a schedule of flodl.optim."
            )


def idle_scheduler(optimizer: Any, callbacks: Iterable[Any], step_fn: Any) -> Iterator[str]:
    """Yield a warning if nothing in a call of `fit` can step the scheduler of an optimizer.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    >>> [*idle_scheduler(optimizer, [], lambda model, x: model(x).mean())]
    []
    >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    >>> [*idle_scheduler(optimizer, [], lambda model, x: model(x).mean())][0][:61]
    'a torch scheduler is attached to the optimizer, and nothing c'
    """
    if not getattr(optimizer.step, "_wrapped_by_lr_sched", False):
        return
    own = [one for one in callbacks if not type(one).__module__.startswith("flodl.")]
    function = inspect.unwrap(getattr(step_fn, "__func__", step_fn))
    if own or not inspect.isfunction(function) or "step" in function.__code__.co_names:
        return
    yield (
        "a torch scheduler is attached to the optimizer, and nothing calls its step() during fit: the "
        "learning rate stays as it is. Pass a schedule of flodl.optim, schedule=…, or step the "
        "scheduler in a hook, on_epoch_end or on_step_end."
    )


def _sets_position(code: CodeType) -> bool:
    """Return whether code creates a scheduler at a later position, as a program does after a resume."""
    return any(isinstance(names, tuple) and "last_epoch" in names for names in code.co_consts)


def _codes(hook: Any) -> Iterator[Any]:
    """Yield the functions of a hook that have code to look at."""
    for candidate in (hook, *(getattr(hook, name, None) for name in HOOKS)):
        function = inspect.unwrap(getattr(candidate, "__func__", candidate))
        if inspect.isfunction(function):
            yield function


def _schedulers_of(hook: Any) -> list[LRScheduler]:
    """Return the schedulers that a hook has as attributes or that its functions use."""
    values = list(getattr(hook, "__dict__", {}).values())
    for function in _codes(hook):
        variables = inspect.getclosurevars(function)
        values += [*variables.nonlocals.values(), *variables.globals.values()]
    return [value for value in values if isinstance(value, LRScheduler)]

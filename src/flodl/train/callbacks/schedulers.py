"""Finds torch schedulers that a hook steps and that no save contains, and what sets the learning rate."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, CyclicLR, LambdaLR, LRScheduler

from flodl.core.contents.objects import attributes_of, functions_of
from flodl.core.contents.reads import with_nested
from flodl.core.formats import a_type

from .hooks import HOOKS

# All other schedulers multiply the current rate, which a resume restores.
_FROM_BASE = (CosineAnnealingWarmRestarts, CyclicLR, LambdaLR)


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


def sets_rate(optimizer: Any, callbacks: Iterable[Any], step_fn: Any) -> bool:
    """Return whether a torch scheduler, a hook or the step function may change a learning rate of 0.

    A scheduler multiplies the rate with which the optimizer was created, `initial_lr`, or has its own.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    >>> sets_rate(optimizer, [], None)
    False
    >>> scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 100)
    >>> optimizer.param_groups[0]["lr"], sets_rate(optimizer, [], None)
    (0.0, True)
    """
    if any(group.get("initial_lr") or group.get("max_lr") for group in optimizer.param_groups):
        return True
    every = list(callbacks)
    if any(any(getattr(one, "max_lrs", ())) for hook in every for one in _schedulers_of(hook)):
        return True  # a CyclicLR from 0
    functions = [inspect.unwrap(getattr(step_fn, "__func__", step_fn))]
    for hook in every:
        functions += [*_codes(hook), *(function for _, function in functions_of(type(hook)))]
    codes = (code for one in functions if inspect.isfunction(one) for code in with_nested(one.__code__))
    return any("param_groups" in code.co_names for code in codes)


def groups_in_use(optimizer: Any, callbacks: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the settings of each group; `initial_lr` is that of a scheduler that a resume has not restored.

    Such a scheduler computes the rate from the one that this program wrote, whatever the group contains.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    >>> scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 100)
    >>> def on_step_end():
    ...     scheduler.step()
    >>> optimizer.param_groups[0]["initial_lr"] = 0.5  # loaded
    >>> [group["initial_lr"] for group in groups_in_use(optimizer, [on_step_end])]
    [0.1]
    """
    groups = [dict(group) for group in optimizer.param_groups]
    found = [one for hook in callbacks for one in _schedulers_of(hook)]
    for scheduler in found:
        found.extend(getattr(scheduler, "_schedulers", ()))  # of SequentialLR and ChainedScheduler
        if scheduler.optimizer is optimizer and isinstance(scheduler, _FROM_BASE):
            for group, rate in zip(groups, scheduler.base_lrs):
                group["initial_lr"] = rate
    return groups


def schedulers_in(hook: Any) -> dict[str, Any]:
    """Return the attributes of a hook that are a torch scheduler, or a list or dict that contains one.

    >>> import torch, types
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    >>> hook = types.SimpleNamespace(gamma=0.5, falls=torch.optim.lr_scheduler.StepLR(optimizer, 10))
    >>> [*schedulers_in(hook)]
    ['falls']
    """
    return {name: value for name, value in attributes_of(hook).items() if _has_scheduler(value)}


def _has_scheduler(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return isinstance(value, LRScheduler) or any(isinstance(one, LRScheduler) for one in inner)


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

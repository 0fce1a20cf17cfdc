"""State that a run changes and that no save contains, found when its first bundle is saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from flodl.core.formats import a_type
from flodl.data import Loader
from flodl.engine import OutsideObjects, OutsideVariable

from ...callbacks.hooks import HOOKS
from ...callbacks.schedulers import unsaved_schedulers
from ...session import Session
from .optimizer_counters import OptimizerCounters
from .optimizer_tensors import OptimizerTensors
from .tensors import is_among, tensors_in

_READING = ("__getitem__", "__getitems__", "__iter__")
# A generator that is seeded for each sample has no state to save.
_SEEDING = frozenset({"seed", "manual_seed", "setstate", "set_state", "bit_generator"})
_STEP_FN = "the step function"


class UnsavedState:
    """The generators of the data, and what hooks and the step function train besides the model."""

    def __init__(self, session: Session, hooks: Iterable[Any], step_fn: Any, loader: Loader) -> None:
        self._session = session
        every = [hook for hook in hooks if not type(hook).__module__.startswith("flodl.")]
        saved = [hook for hook in every if hasattr(hook, "state_dict")]
        known = [session.model, *session.model.parameters(), *session.model.buffers(), session.optimizer]
        # A program with on_resume restores what it needs there.
        restores = any(functions_of(hook, ("on_resume",)) for hook in every)
        owners = [
            (f"the hook {getattr(hook, '__name__', type(hook).__name__)}", function)
            for hook in every
            if not hasattr(hook, "state_dict") and not restores
            for function in functions_of(hook, HOOKS)
        ]
        self._counters = OptimizerCounters(session.optimizer)
        self._tensors = OptimizerTensors(session.optimizer)
        self._hooks = [] if restores else every
        self._data = OutsideObjects(_readers_of(loader), saved=[*known, *saved])
        self._trained = OutsideObjects([*owners, (_STEP_FN, step_fn)], saved=[*known, *saved])

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each owner of state that has changed since."""
        yield from unsaved_parameters(self._session)
        yield from unsaved_inner_optimizer(self._session.optimizer)
        yield from self._counters.warnings()
        yield from self._tensors.warnings()
        # One that a hook creates in its first step or epoch was not there at the start.
        yield from unsaved_schedulers(self._hooks)
        drawn = [one for one in self._data.variables if one.is_drawn]
        for owner, own in _by_owner(drawn):
            names = " and ".join(repr(one.name) for one in own)
            yield (
                f"{owner} draws from {names}, a generator of its own, whose state is in no save: a resumed "
                "run would draw other numbers. Draw from random, numpy.random or torch, which are seeded for "
                "each sample and batch, or create the generator from the index of the sample."
            )
        for owner, own in _by_owner(filter(self._is_trained, self._trained.variables)):
            names = " and ".join(f"{one.name!r} ({one.kind})" for one in own)
            them = "it" if len(own) == 1 else "them"
            yield (
                f"{owner} changes {names}, and no save contains {them}: a resumed run would start with the "
                "initial state there. Make a module part of the model, or save its state_dict, and that of "
                "an optimizer, with a hook class that has state_dict and load_state_dict."
            )

    def _is_trained(self, variable: OutsideVariable) -> bool:
        """Return whether a variable has changed, other than to a mere copy of the model."""
        if variable.is_stepped or variable.owner == _STEP_FN:
            return variable.is_stepped  # the dry pass looks for tensors that the step function writes to
        model = self._session.model
        tensors = [each.detach() for each in (*model.parameters(), *model.buffers())]
        return not all(is_among(tensor, tensors) for tensor in variable.written)


def _by_owner(found: Iterable[OutsideVariable]) -> Iterable[tuple[str, list[OutsideVariable]]]:
    owners: dict[str, list[OutsideVariable]] = {}
    for one in found:
        owners.setdefault(one.owner, []).append(one)
    return owners.items()


def unsaved_parameters(session: Session) -> Iterator[str]:
    """Yield a warning if the state_dict of the model lacks parameters that the optimizer trains."""
    trained = {each for group in session.optimizer.param_groups for each in group["params"]}
    state = session.model.state_dict()
    values = [value for value in state.values() if isinstance(value, Tensor)]
    lost = [
        name
        for name, parameter in session.model.named_parameters()
        if parameter.requires_grad and parameter in trained
        if name not in state and not is_among(parameter, values)
    ]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        yield (
            f"the optimizer trains {lost[0]!r}{more}, which model.state_dict() does not contain, so no save "
            "does: a resumed run would start with initial values there. Return them from state_dict() too, "
            "or do not train them: requires_grad_(False)."
        )


def unsaved_inner_optimizer(optimizer: Optimizer) -> Iterator[str]:
    """Yield a warning if an optimizer wraps another one, and its state_dict lacks the state of that one.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> outer, inner = torch.optim.SGD([weight]), torch.optim.Adam([weight])
    >>> outer.base, weight.grad = inner, torch.ones(1)
    >>> inner.step()
    >>> [text[:52] for text in unsaved_inner_optimizer(outer)]
    ["the optimizer SGD wraps an Adam ('base'), whose stat"]
    """
    for name, inner in vars(optimizer).items():
        if not isinstance(inner, Optimizer) or inner is optimizer:
            continue
        held = [each for each in tensors_in(inner.state) if each.numel() > 1] or list(tensors_in(inner.state))
        if held and not is_among(held[0], list(tensors_in(optimizer.state_dict()))):
            yield (
                f"the optimizer {type(optimizer).__name__} wraps {a_type(inner)} ({name!r}), whose "
                "state is in no save, because state_dict() of the wrapper does not contain it: a resumed run "
                "would start without it. Add it in state_dict and load_state_dict of the wrapper."
            )


def functions_of(hook: Any, names: Iterable[str]) -> list[Any]:
    """Return the functions of a hook by name, or the hook itself if it is one."""
    found = [getattr(hook, name, None) for name in names]
    own = [hook] if isinstance(hook, FunctionType) and hook.__name__ in names else []
    return [*own, *(one for one in found if callable(one))]


def _readers_of(loader: Loader) -> Iterator[tuple[str, Any]]:
    """Yield what reads and changes samples: the dataset and the functions, but no sampler."""
    arguments = loader.arguments()
    parts = [("the dataset", arguments["source"])]
    parts += [(name, arguments[name]) for name in ("transform", "collate", "augment")]
    while parts:
        name, value = parts.pop()
        if isinstance(value, DataLoader):
            parts += [("the dataset", value.dataset), ("collate_fn", value.collate_fn)]
        elif isinstance(value, list | tuple) and len(value) < 100:
            parts += [(name, one) for one in value]
        elif isinstance(value, Dataset) and type(value).__module__.startswith("torch."):
            parts += [(name, one) for one in vars(value).values()]
        elif hasattr(value, "state_dict") or value is None:
            continue  # an iterable with a state is saved
        else:
            called = [getattr(value, one, None) for one in (*_READING, "__call__")]
            found = [value] if isinstance(value, FunctionType) else [one for one in called if callable(one)]
            owner = f"{name} {type(value).__name__}" if name == "the dataset" else name
            for function in found:
                code = getattr(getattr(function, "__func__", function), "__code__", None)
                if isinstance(code, CodeType) and not _SEEDING.intersection(_names_in(code)):
                    yield owner, function


def _names_in(code: CodeType) -> set[str]:
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*map(_names_in, inner))

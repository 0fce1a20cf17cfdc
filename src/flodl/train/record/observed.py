"""The parts of a run before it trains: the step function with all that it reads, modules, data.

Training changes some of it, such as a list that the step function fills, so it is taken before that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from types import FunctionType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from flodl.core.contents import Contents
from flodl.core.contents.class_constants import describe_constants
from flodl.core.contents.objects import (
    attributes_of,
    class_label,
    constants_of,
    functions_of,
    module_settings,
    registered,
    states_of,
)
from flodl.core.contents.reads import uses_of
from flodl.core.plain import hide_secret, short_hash
from flodl.engine import trained_by_others

from ..evaluation.evaluator import Evaluator
from ..session import Session
from .changes import changed_modules, changes, pattern_of
from .torch_hooks import describe_torch_hooks

MAX_MODULES = 500
_MAX_TEXT = 200
ROOT = "(root)"


def observe(session: Session, evaluator: Evaluator, *, with_others: bool = True) -> dict[str, Any]:
    """Describe the step function, the metrics and the modules, each with what it reaches.

    Without `with_others`, tensors that other steps of this process have trained have no values.
    """
    known = known_objects(session)
    if not with_others:
        known = {id(one): "trained by another step" for one in trained_by_others(session.train_step)} | known
    step = Contents(known).of(evaluator.step_fn)
    step = dict(step) if isinstance(step, dict) else {"code": step}
    outputs = evaluator.outputs
    return {
        "step_fn": step.pop("code", None) or step.get("class"),
        "step": step,
        "metrics": {name: Contents(known).of(metric) for name, metric in evaluator.metrics.items()},
        "outputs": None if outputs is None else Contents(known).of(outputs),
        "modules": describe_modules(session.model),
        "classes": describe_classes(session.model, known, read_in(evaluator.step_fn)),
        "torch_hooks": describe_torch_hooks(session.model, session.optimizer, known),
        "optimizer_attributes": describe_attributes(session.optimizer, known),
    }


def describe_attributes(optimizer: Optimizer, known: Mapping[int, str]) -> dict[str, Any]:
    """Return the public numbers and texts of an optimizer that are not settings of its groups, and what its
    class reads, if it is one of the user.

    >>> optimizer = Optimizer([nn.Parameter()], {"lr": 0.1})
    >>> optimizer.k = 6
    >>> describe_attributes(optimizer, {})
    {'k': 6}
    """
    kind = type(optimizer)
    states = states_of(optimizer)
    stored = {**constants_of(kind), **attributes_of(optimizer)}
    own = {
        name: hide_secret(name, item)
        for name, item in stored.items()
        if type(item) in (bool, int, float, str) and not name.startswith("_")
        if name not in states and name not in optimizer.defaults
    }
    read = Contents(known).of_class(kind)
    return {name: item for name, item in {**read, **own}.items() if item is not None}


def known_objects(session: Session) -> dict[int, str]:
    """Return names for the model, its parts, and everything that is saved with the run, by id."""
    model = session.model
    known = {
        id(one): "a trained tensor" for group in session.optimizer.param_groups for one in group["params"]
    }
    known |= {id(one): f"model.{name}" for name, one in model.named_parameters()}
    known |= {id(one): f"model.{name}" for name, one in model.named_buffers()}
    known |= {id(one): f"model.{name}" for name, one in model.named_modules()}
    return known | {id(model): "the model", id(session.optimizer): "the optimizer"}


def describe_modules(model: nn.Module) -> dict[str, str]:
    """Return the class and the settings of each module, by path.

    Modules that are equal in all layers have one entry, with "*" in place of the number.

    >>> describe_modules(nn.Sequential(nn.Dropout(0.1), nn.ReLU()))
    {'0': 'Dropout(p=0.1, inplace=False)', '1': 'ReLU(inplace=False)'}
    """
    texts: dict[str, str] = {}
    for path, module in model.named_modules():
        if text := _text(module):
            texts[path or ROOT] = text
    alike: dict[str, set[str]] = defaultdict(set)
    for path, text in texts.items():
        alike[pattern_of(path)].add(text)
    counts: dict[str, int] = defaultdict(int)
    for path in texts:
        counts[pattern_of(path)] += 1
    found: dict[str, str] = {}
    for path, text in texts.items():
        pattern = pattern_of(path)
        found[pattern if len(alike[pattern]) == 1 and counts[pattern] > 1 else path] = text
    shown = dict(list(found.items())[:MAX_MODULES])
    if len(found) > MAX_MODULES:
        shown["…"] = str(Contents().of(list(found.items())[MAX_MODULES:]))
    return shown


def _text(module: nn.Module) -> str:
    """Return the class and the settings of a module; "" for a container without settings."""
    states = states_of(module)
    settings = {name: item for name, item in module_settings(module).items() if name not in states}
    shown = []
    for name, item in settings.items():
        described = None if item is None else Contents(max_parts=50).of(item)
        if described is not None:
            shown.append(f"{name}={repr(described) if isinstance(item, str) else described}")
    name = type(module).__qualname__.rpartition("<locals>.")[2]
    if not shown and next(module.children(), None) is not None:
        return name if type(module) is not nn.Sequential and type(module) is not nn.ModuleList else ""
    text = f"{name}({', '.join(shown)})" if shown else name
    return text if len(text) <= _MAX_TEXT else f"{text[:120]}… #{short_hash(text.encode())}"


def read_in(step_fn: Any) -> frozenset[str]:
    """Return the attributes that a step function reads of its arguments, the model among them."""
    function = getattr(step_fn, "__func__", step_fn)
    read = uses_of(function.__code__)[0] if isinstance(function, FunctionType) else ()
    names = ([name for name in one.attributes if name != "__class__"] for one in read if one.attributes)
    return frozenset(found[0] for found in names if found)


def describe_classes(
    model: nn.Module, known: Mapping[int, str], names: Collection[str] = ()
) -> dict[str, Any]:
    """Describe the classes of the user among the modules: a hash of their code, and the values they read.

    Those are globals, and under "self" values of the class that all its objects share. `names` are read by
    others.
    """
    found: dict[str, Any] = {}
    stored: dict[type, set[str]] = {}
    for module in model.modules():
        own = {*attributes_of(module), *registered(module)}
        stored[type(module)] = stored.get(type(module), own) & own
    for kind, shadowed in stored.items():
        if next(functions_of(kind), None) is not None or names:
            contents = Contents(known)
            label = class_label(kind)
            reads = contents.of_class(kind)
            constants = describe_constants(kind, contents, names=names, stored=shadowed)
            reads |= {"self": constants} if constants else {}
            if not reads and next(functions_of(kind), None) is None:
                continue
            found[label.partition(" ")[0]] = {"code": label, **reads} if reads else label
    return found


def without_states(before: Any, ended: Any, now: Any) -> Any:
    """Return what is observed now, except that what training changed is as it was before it trained."""
    if now == ended:
        return before
    if isinstance(before, dict) and isinstance(ended, dict) and isinstance(now, dict):
        return {name: without_states(before.get(name), ended.get(name), one) for name, one in now.items()}
    return now


def without_others(before: Any, now: Any, masked: Any) -> Any:
    """Return what was observed before, but with the present values of tensors that other steps have trained.

    `masked` is what is observed now without them.
    """
    if masked == now:
        return before
    if isinstance(before, dict) and isinstance(now, dict) and isinstance(masked, dict):
        found = {name: without_others(before.get(name), now.get(name), masked.get(name)) for name in now}
        return {**before, **{name: one for name, one in found.items() if name in before}}
    return now


def changed_observed(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Describe what changed since the trainer trained last, one line each."""
    parts = {name: item for name, item in now.items() if name != "modules"}
    lines = list(changes("", parts, {name: before.get(name) for name in parts}))
    return lines + list(changed_modules(now, before))

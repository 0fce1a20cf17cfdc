"""Describe an optimizer and its schedule: hyperparameters of each group, and other settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from flodl.core.clock import is_reading
from flodl.core.contents import Contents
from flodl.core.contents.objects import attributes_of, class_label, constants_of, states_of
from flodl.core.plain import describe, hide_secret, plain

from .modes import names_of

# Chosen by the training step, or without effect on the results.
_NOT_RECORDED = frozenset({"params", "param_names", "fused", "foreach", "capturable", "differentiable"})


def describe_optimizer(
    optimizer: Optimizer, groups: Sequence[Mapping[str, Any]] | None, model: nn.Module | None
) -> dict[str, Any]:
    """Return the hyperparameters, by group if there are several; `groups` are those to describe.

    With a model, the parameters of a group are named, unless a single group has all trained ones. A
    torch scheduler keeps the rate that the user specified as `initial_lr`: `lr` is the current one, 0
    before a warm-up from 0.

    >>> model = nn.Linear(2, 1)
    >>> import torch
    >>> describe_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), None, model)["lr"]
    0.1
    """
    trained = set() if model is None else {id(one) for one in model.parameters() if one.requires_grad}
    described = []
    for held, settings in zip(optimizer.param_groups, groups or optimizer.param_groups):
        values = {name: plain(value) for name, value in settings.items() if name not in _NOT_RECORDED}
        sizes = [0 if is_lazy(one) else one.numel() for one in held["params"]]
        described.append({**values, "num_parameters": sum(sizes)})
        is_part = len(optimizer.param_groups) > 1 or not trained <= {id(one) for one in held["params"]}
        if is_part and model is not None:
            described[-1]["parameters"] = names_of(held["params"], model)
    if len(described) == 1:
        return described[0]
    return {f"group_{number}": values for number, values in enumerate(described, start=1)}


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
        if name not in states and name not in optimizer.defaults and not is_reading(item)
    }
    read = Contents(known).of_class(kind)
    return {name: item for name, item in {**read, **own}.items() if item is not None}


def describe_schedule(schedule: Any) -> str | None:
    """Return a schedule with its settings; a function and a class of the user with a hash of its code."""
    if schedule is None:
        return None
    # The current rate is not a setting; the schedule may be inside a warm-up.
    text = re.sub(r"(PlateauScheduler\([^()]*), lr=[^,()]*\)", r"\1)", describe(schedule))
    code = class_label(type(schedule)).partition(" ")[2]
    return f"{text} {code}" if code else text

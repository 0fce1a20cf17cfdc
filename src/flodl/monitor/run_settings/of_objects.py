"""The settings of a model, an optimizer, a schedule or a step, under the names of a trainer's record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from flodl.core import log
from flodl.core.contents import Contents
from flodl.core.contents.objects import class_label
from flodl.core.contents.schedulers import is_scheduler

from .code import code_version
from .machine import hardware, torch_flags, versions
from .model import describe_model
from .modes import describe_modes
from .modules import describe_classes, describe_modules
from .optimizer import describe_attributes, describe_optimizer, describe_schedule
from .step_function import describe_step_function, known_objects, read_in


def of_model(model: nn.Module, optimizer: Optimizer | None = None, step_fn: Any = None) -> dict[str, Any]:
    """Return the record of a model; its step function may read attributes of it.

    >>> of_model(nn.Linear(2, 1))["model"]["parameters"]
    3
    """
    known = known_objects(model, optimizer)
    names = frozenset[str]() if step_fn is None else read_in(step_fn)
    return {
        "model": _known(
            lambda: {
                **describe_model(model),
                **describe_modes(model),
                "modules": describe_modules(model),
                "classes": describe_classes(model, known, names),
            }
        )
    }


def of_optimizer(optimizer: Any, model: nn.Module | None = None) -> dict[str, Any]:
    """Return the record of an optimizer; the parameters of its groups are named if the model is known.

    >>> optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    >>> found = of_optimizer(optimizer)
    >>> found["optimizer"], found["optimizer_settings"]["lr"]
    ('SGD', 0.1)
    """
    known = {} if model is None else known_objects(model, optimizer)
    return {
        "optimizer": class_label(type(optimizer)),
        "optimizer_settings": _known(lambda: describe_optimizer(optimizer, None, model)),
        "optimizer_attributes": _known(lambda: describe_attributes(optimizer, known)),
    }


def of_schedule(schedule: Any) -> dict[str, Any]:
    """Return the record of a schedule, of what `apply` returned, or of a torch LR scheduler."""
    if is_scheduler(schedule):
        optimizer = getattr(schedule, "optimizer", None)
        return {"schedule": Contents({id(optimizer): "the optimizer"}).of(schedule)}
    return {"schedule": _known(lambda: describe_schedule(getattr(schedule, "schedule", schedule)))}


def of_step(step: Any, model: nn.Module, optimizer: Optimizer, step_fn: Any) -> dict[str, Any]:
    """Return the settings of a training step, without those of its model, optimizer and schedule."""
    known = known_objects(model, optimizer)
    return {**asdict(step.settings), **_mapping(partial(describe_step_function, step_fn, known))}


def of_device(model: nn.Module) -> dict[str, Any]:
    """Return the device of a model and the hardware."""
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    return {"device": str(device), "hardware": _known(lambda: hardware(device))}


def of_program(step_fn: Any) -> dict[str, Any]:
    """Return the version of the code and of what computes the results."""
    return {
        "code": _known(lambda: code_version(step_fn)),
        "versions": versions(),
        "torch": torch_flags(),
    }


def _mapping(read: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    found = _known(read)
    return found if isinstance(found, Mapping) else {"step_fn": found}


def _known(read: Callable[[], Any]) -> Any:
    """Return what a function returns, or why it failed: a run must not fail because of its record."""
    try:
        return read()
    except Exception as error:
        log.debug("a part of the record of the run cannot be read: %s", error)
        return f"unknown ({type(error).__name__})"

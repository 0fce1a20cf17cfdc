"""Describe a step function with all that it reads, and what it reads of the model."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from flodl.core.contents import Contents
from flodl.core.contents.reads import uses_of


def describe_step_function(step_fn: Any, known: Mapping[int, str]) -> dict[str, Any]:
    """Return the code of a step function as `step_fn`, and what it reads as `step`."""
    found = Contents(known).of(step_fn)
    step = dict(found) if isinstance(found, dict) else {"code": found}
    return {"step_fn": step.pop("code", None) or step.get("class"), "step": step}


def known_objects(model: nn.Module, optimizer: Optimizer | None) -> dict[int, str]:
    """Return names for the model, its parts, and everything that is saved with the run, by id."""
    groups = () if optimizer is None else optimizer.param_groups
    known = {id(one): "a trained tensor" for group in groups for one in group["params"]}
    known |= {id(one): f"model.{name}" for name, one in model.named_parameters()}
    known |= {id(one): f"model.{name}" for name, one in model.named_buffers()}
    known |= {id(one): f"model.{name}" for name, one in model.named_modules()}
    known |= {id(model): "the model"}
    return known if optimizer is None else known | {id(optimizer): "the optimizer"}


def read_in(step_fn: Any) -> frozenset[str]:
    """Return the attributes that a step function reads of its arguments, the model among them."""
    function = getattr(step_fn, "__func__", step_fn)
    read = uses_of(function.__code__)[0] if isinstance(function, FunctionType) else ()
    names = ([name for name in one.attributes if name != "__class__"] for one in read if one.attributes)
    return frozenset(found[0] for found in names if found)

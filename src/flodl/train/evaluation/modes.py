"""What learns and what is in training, module by module: kept, saved, and put back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from flodl.graph import is_kept_in_eval, set_kept_in_eval


def modes_of(model: nn.Module) -> dict[str, list[str]]:
    """Name the parameters that are frozen, the modules that are not in training, and those that stay so."""
    modules = list(model.named_modules())
    return {
        "frozen": [name for name, parameter in model.named_parameters() if not parameter.requires_grad],
        "evaluating": [name for name, module in modules if not module.training],
        "stilled": [name for name, module in modules if is_kept_in_eval(module)],
    }


def restore_modes(model: nn.Module, modes: Mapping[str, Any]) -> None:
    """Freeze and still what `modes_of` named, and nothing else."""
    frozen, evaluating, stilled = (set(modes[kind]) for kind in ("frozen", "evaluating", "stilled"))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad == (name in frozen):
            parameter.requires_grad_(name not in frozen)
            parameter.grad = None
    for name, module in model.named_modules():
        module.training = name not in evaluating
        set_kept_in_eval(module, name in stilled)


def modes_kept(model: nn.Module) -> AbstractContextManager[None]:
    """Give every module back the mode that it had, where the model was not in training as a whole."""
    return _put_back([] if model.training else model.modules())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch every module to evaluation, and each back to what it was."""
    with _put_back(model.modules()), torch.no_grad():
        model.eval()
        yield


@contextmanager
def _put_back(modules: Iterable[nn.Module]) -> Iterator[None]:
    before = [(module, module.training) for module in modules]
    try:
        yield
    finally:
        for module, training in before:
            module.training = training

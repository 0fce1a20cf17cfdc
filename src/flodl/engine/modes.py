"""Switches modules between training and evaluation as a plain loop does: with `train()` and `eval()`."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn


def enter_training(model: nn.Module) -> None:
    """Call `train()` for a model that trains from now on; modules in evaluation mode stay in it.

    A model that is in evaluation mode as a whole is switched as a whole. If only its root and some parts are,
    the program chose the parts, and all modes stay as they are. `train()` is called for a model in training
    mode too, because a module may do more there than set its mode.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    >>> _ = model[1].eval()
    >>> enter_training(model)
    >>> [module.training for module in model.modules()]
    [True, True, False]
    """
    if has_chosen_modes(model):
        return
    kept = [module for module in model.modules() if not module.training] if model.training else []
    model.train()
    switch_modes((module, False) for module in kept)


def has_chosen_modes(model: nn.Module) -> bool:
    """Return whether a model is in evaluation mode, and some of its modules are in training mode.

    >>> model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)).eval()
    >>> before = has_chosen_modes(model)
    >>> _ = model[1].train()
    >>> before, has_chosen_modes(model)
    (False, True)
    """
    return not model.training and any(module.training for module in model.modules())


def switch_modes(modes: Iterable[tuple[nn.Module, bool]]) -> None:
    """Set the modes of modules, outer ones first, with `train`, which a module may override."""
    every = list(modes)
    for module, training in every:
        if module.training != training:
            module.train(training)
    for module, training in every:  # a `train` of the user may leave parts of it out
        module.training = training

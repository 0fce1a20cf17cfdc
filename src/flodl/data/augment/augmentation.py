"""The type of an augmentation, `Compose`, and the conversion of what users pass as `augment`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flodl.core.errors import DataError

from ..sampling.random_numbers import Chance

Augmentation = Callable[[Any, Chance], Any]

_CALLED = (
    "augment is called with the whole batch and a Chance, which draws random numbers: "
    "def augment(batch, chance): x, y = batch; return change(x), y."
)


def apply_augmentation(augment: Augmentation, batch: Any, chance: Chance) -> Any:
    """Augment a batch; raise if the augmentation returns None or its second argument, the chance."""
    try:
        augmented = augment(batch, chance)
    except Exception as error:
        if not isinstance(augment, Compose) and not isinstance(error, DataError):
            error.add_note(_CALLED)
        raise
    if augmented is None:
        raise DataError("augment returned None. Return the batch, even if it was changed in place.")
    if type(augmented) is tuple and any(part is chance for part in augmented):
        raise DataError(f"augment returned its second argument, a Chance, as part of the batch. {_CALLED}")
    return augmented


def draws_from_chance(augment: Augmentation | None) -> bool:
    """Return whether an augmentation draws all its random numbers from its `chance` argument.

    If so, it may be called ahead of time. A user's augmentation declares it with an attribute
    `draws_from_chance = True`.
    """
    if isinstance(augment, Compose):
        return all(map(draws_from_chance, augment.parts))
    return augment is None or bool(getattr(augment, "draws_from_chance", False))


class Compose:
    """Applies several augmentations in order."""

    def __init__(self, *parts: Augmentation | Sequence[Augmentation]) -> None:
        flat: list[Any] = [
            inner for part in parts for inner in (part if isinstance(part, list | tuple) else [part])
        ]
        if wrong := [part for part in flat if not callable(part) or isinstance(part, type)]:
            raise DataError(
                f"Compose: {wrong[0]!r} is not an augmentation. Pass functions augment(batch, chance)."
            )
        self.parts: tuple[Augmentation, ...] = tuple(flat)

    def __call__(self, batch: Any, chance: Chance) -> Any:
        for part in self.parts:
            batch = apply_augmentation(part, batch, chance)
        return batch

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.parts))})"


def flatten(augment: Augmentation | None) -> list[Augmentation]:
    """Return the single augmentations of a composition."""
    if isinstance(augment, Compose):
        return [part for inner in augment.parts for part in flatten(inner)]
    return [] if augment is None else [augment]


def as_augmentation(augment: Any) -> Augmentation | None:
    """Convert one augmentation, a list of them, or a function of only the batch to an augmentation.

    >>> as_augmentation(lambda batch: batch + 1)(1, None)
    2
    """
    if augment is None:
        return None
    if isinstance(augment, Sequence) and not isinstance(augment, str | bytes):
        return Compose(*(part for part in map(as_augmentation, augment) if part is not None))
    if not callable(augment) or isinstance(augment, type):
        raise DataError(f"augment={augment!r}. Pass a function augment(batch, chance), or a list of them.")
    return augment if _takes_chance(augment) else _IgnoresChance(augment)


@dataclass(frozen=True)
class _IgnoresChance:
    """Adapts a function of only the batch; a class, not a closure, so that it can be pickled."""

    augment: Callable[[Any], Any]

    @property
    def draws_from_chance(self) -> bool:
        return bool(getattr(self.augment, "draws_from_chance", False))

    def __call__(self, batch: Any, chance: Chance) -> Any:
        return self.augment(batch)


def ignores_chance(augment: Any) -> bool:
    """Return whether an augmentation is a function of the batch alone, which no loader seeds."""
    return isinstance(augment, _IgnoresChance)


def plain_function(augment: Any) -> Any:
    """Return the function of the user inside an augmentation."""
    return augment.augment if isinstance(augment, _IgnoresChance) else augment


def _takes_chance(augment: Callable[..., Any]) -> bool:
    try:
        # A module takes the arguments of its forward.
        called = augment.forward if isinstance(augment, torch.nn.Module) else augment
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return True
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters)

"""Augmentations of a batch: their type, how several are combined, and what users may pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flodl.core.errors import DataError

from ..sampling.random_numbers import Chance

Augmentation = Callable[[Any, Chance], Any]


def augmented(augment: Augmentation, batch: Any, chance: Chance) -> Any:
    """Augment a batch; one that got lost is told."""
    given = augment(batch, chance)
    if given is None:
        raise DataError("augment gave nothing. Return the batch, also where it was changed in place.")
    return given


def draws_by_chance(augment: Augmentation | None) -> bool:
    """Say whether everything random about an augmentation comes from the chance that it is given.

    Then it makes no difference when it is called, and it may be called ahead of time. One's own says so with
    an attribute `draws_by_chance = True`; of others it is not known.
    """
    if isinstance(augment, Compose):
        return all(map(draws_by_chance, augment.parts))
    return augment is None or bool(getattr(augment, "draws_by_chance", False))


class Compose:
    """Augmentations one after another."""

    def __init__(self, *parts: Augmentation | Sequence[Augmentation]) -> None:
        given: list[Any] = [
            inner for part in parts for inner in (part if isinstance(part, list | tuple) else [part])
        ]
        if wrong := [part for part in given if not callable(part) or isinstance(part, type)]:
            raise DataError(
                f"Compose: {wrong[0]!r} is no augmentation. Give functions augment(batch, chance)."
            )
        self.parts: tuple[Augmentation, ...] = tuple(given)

    def __call__(self, batch: Any, chance: Chance) -> Any:
        for part in self.parts:
            batch = augmented(part, batch, chance)
        return batch

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.parts))})"


def as_augmentation(augment: Any) -> Augmentation | None:
    """Take one augmentation, a list of them, or a function of the batch alone.

    >>> as_augmentation(lambda batch: batch + 1)(1, None)
    2
    """
    if augment is None:
        return None
    if isinstance(augment, Sequence) and not isinstance(augment, str | bytes):
        return Compose(*(part for part in map(as_augmentation, augment) if part is not None))
    if not callable(augment) or isinstance(augment, type):
        raise DataError(f"augment={augment!r}. Give a function augment(batch, chance), or a list of them.")
    return augment if _takes_chance(augment) else _WithoutChance(augment)


@dataclass(frozen=True)
class _WithoutChance:
    """A class, not a closure, so that it can be sent to another process."""

    augment: Callable[[Any], Any]

    @property
    def draws_by_chance(self) -> bool:
        return bool(getattr(self.augment, "draws_by_chance", False))

    def __call__(self, batch: Any, chance: Chance) -> Any:
        return self.augment(batch)


def _takes_chance(augment: Callable[..., Any]) -> bool:
    try:
        # A module takes what its forward takes.
        called = augment.forward if isinstance(augment, torch.nn.Module) else augment
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return True
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(by_place) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters)

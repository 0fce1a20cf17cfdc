"""What the two modes have in common: the plan of an epoch, and a batch with its place in it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from flodl.core.errors import DataError

from .augment import Augmentation, Compose
from .chance import Chance
from .order import spans, stream_key
from .samplers import Sampler


@dataclass(frozen=True)
class Epoch:
    """One epoch as the loader asks for it, from a position on."""

    seed: int
    number: int
    start: int
    batch_size: int | None
    drop_last: bool
    source_state: Any = None

    @property
    def name(self) -> tuple[int, ...]:
        """What its order and everything random about it follow from."""
        return self.seed, self.number

    @property
    def key(self) -> int:
        """The key from which every sample of the epoch has its randomness."""
        return stream_key(self.seed, self.number, "augment")

    def spans(self, num_samples: int) -> list[tuple[int, int]]:
        """Give the positions of each batch."""
        assert self.batch_size is not None
        return spans(self.start, num_samples, self.batch_size, drop_last=self.drop_last)

    def order(self, sampler: Sampler, count: int, device: torch.device) -> torch.Tensor:
        """Give the index of the sample at each position."""
        return sampler.order(count, seed=self.seed, epoch=self.number, device=device)


@dataclass(frozen=True)
class Handed:
    """A batch, the position behind it, and the state of a streaming source there."""

    batch: Any
    position: int
    source_state: Any = None


class Backend(Protocol):
    """Gives the batches of an epoch; closing the iterator early is allowed."""

    def batches(self, epoch: Epoch) -> Iterator[Handed]:
        """Give the batches in order."""
        ...

    def close(self) -> None:
        """Let go of processes and memory."""
        ...


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

"""Samplers: which samples an epoch uses, and in which order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import SequentialSampler as TorchSequentialSampler

from flodl.core.errors import DataError
from flodl.core.formats import a_type
from flodl.core.integers import as_integer, is_integer
from flodl.core.rng_state import preserve_rng_state

from .global_rng import seed_global_rng
from .indices import (
    as_index_tensor,
    check_indices,
    check_length,
    check_no_generator,
    check_not_mask,
    check_weights,
)
from .lazy_order import LazyOrder, Order, Permutation
from .order import MAX_SORTED, permutation, sample_keys, stream_key


@runtime_checkable
class Sampler(Protocol):
    """Returns the indices of an epoch, as a pure function of its arguments."""

    def order(self, count: int, *, seed: int, epoch: int, device: torch.device) -> Order:
        """Return the indices, each below `count`, in the order of the epoch: a tensor or a lazy order."""
        ...

    def length(self, count: int) -> int | None:
        """Return how many indices an epoch has, or None if only `order` can tell."""
        ...


class SequentialSampler:
    """Every sample once, from the first to the last."""

    def order(self, count: int, *, seed: int, epoch: int, device: torch.device) -> Order:
        return _range_order(range(count), device)

    def length(self, count: int) -> int:
        return count


class RandomSampler:
    """Every sample once, in a different order each epoch."""

    def order(self, count: int, *, seed: int, epoch: int, device: torch.device) -> Order:
        if count <= MAX_SORTED:
            return permutation(count, seed=seed, epoch=epoch, device=device)
        return LazyOrder(count, Permutation.of(count, seed=seed, epoch=epoch), device)

    def length(self, count: int) -> int:
        return count


class SortedRandomSampler(RandomSampler):
    """Sorts any number of samples, as `RandomSampler` did when older cursors were saved."""

    def order(self, count: int, *, seed: int, epoch: int, device: torch.device) -> Order:
        return permutation(count, seed=seed, epoch=epoch, device=device)


class WeightedSampler:
    """Samples drawn in proportion to their weights; without replacement, each at most once.

    >>> sampler = WeightedSampler([0.0, 1.0, 3.0], num_samples=4000)
    >>> drawn = sampler.order(3, seed=0, epoch=0, device=torch.device("cpu"))
    >>> (drawn.bincount() / 1000).round().tolist()
    [0.0, 1.0, 3.0]
    """

    def __init__(
        self, weights: Sequence[float] | Tensor, *, num_samples: int | None = None, replacement: bool = True
    ) -> None:
        try:
            self.weights = torch.as_tensor(weights, dtype=torch.float64, device="cpu").flatten()
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"WeightedSampler: {error}. Pass one number per sample.") from error
        if not bool(torch.isfinite(self.weights).all()) or bool((self.weights < 0).any()):
            raise DataError(
                "WeightedSampler: a weight is negative, infinite or NaN. Pass finite weights >= 0."
            )
        usable = int((self.weights > 0).sum())
        if usable == 0:
            raise DataError("WeightedSampler: every weight is 0. Pass at least one weight above 0.")
        self.num_samples = (
            (len(self.weights) if replacement else usable) if num_samples is None else as_integer(num_samples)
        )
        self.replacement = replacement
        if not is_integer(self.num_samples, at_least=1) or (not replacement and self.num_samples > usable):
            raise DataError(
                f"WeightedSampler: num_samples={self.num_samples!r} with {usable} weights above 0. "
                f"Pass 1 to {usable}, or replacement=True."
            )

    def order(self, count: int, *, seed: int, epoch: int, device: torch.device) -> Tensor:
        self.length(count)
        # Always on the CPU: floating-point sums differ between devices.
        key = stream_key(seed, epoch, "order")
        drawn = self.num_samples if self.replacement else count
        bits = sample_keys(key, torch.arange(drawn))
        uniform = (((bits >> 11) & (2**53 - 1)).to(torch.float64) + 0.5) * 2**-53
        if self.replacement:
            ends = self.weights.cumsum(0)
            chosen = torch.searchsorted(ends, uniform * ends[-1], right=True)
            chosen = chosen.clamp_(max=int(self.weights.nonzero()[-1]))
        else:
            # The smallest exponential times with the weights as rates (Efraimidis and Spirakis).
            chosen = torch.argsort(-uniform.log() / self.weights, stable=True)[: self.num_samples]
        return chosen.to(device, non_blocking=True)

    def length(self, count: int) -> int:
        if len(self.weights) != count:
            raise DataError(
                f"WeightedSampler: {len(self.weights)} weights for {count} samples. Pass one per sample."
            )
        return self.num_samples


class CustomSampler:
    """The order of a function of the epoch, or of an iterable such as a torch sampler."""

    def __init__(self, source: Callable[..., Any] | Iterable[int]) -> None:
        check_no_generator(source)
        if not callable(source):
            check_not_mask(source)
        self.source = source
        # Reading a container does not change it.
        self.is_container = self._is_pure = isinstance(source, list | tuple | range | Tensor | np.ndarray)

    def order(self, count: int, *, seed: int, epoch: int, device: torch.device) -> Order:
        indices = self._indices(seed, epoch)
        if not self._is_pure:  # checked once: an order of a million samples may take half a second
            if not _same_indices(indices, self._indices(seed, epoch)):
                raise DataError(
                    f"the sampler returned two different orders for epoch {epoch}: it keeps a counter or a "
                    "random state, so a resumed run would see a different order. Make the order depend only "
                    "on the epoch, with a method set_epoch(epoch) or as a function: sampler=lambda epoch: …"
                )
            self._is_pure = True
        check_length(len(indices), self.length(count), epoch)
        if isinstance(indices, range):
            check_indices(torch.tensor([indices[0], indices[-1]]), count, epoch)
            return _range_order(indices, device)
        check_indices(indices, count, epoch)
        return indices.to(torch.int64).to(device, non_blocking=True)

    def length(self, count: int) -> int | None:
        check_weights(self.source, count)
        return len(self.source) if isinstance(self.source, Sized) else None

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch to a sampler with `set_epoch`; its length may depend on it."""
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)

    def _indices(self, seed: int, epoch: int) -> Tensor | range:
        """Return the order of an epoch; a range if it is one and too long to be stored."""
        # Torch samplers use the global generators; seeding those per epoch makes the samplers pure.
        with preserve_rng_state():
            seed_global_rng(stream_key(seed, epoch, "order"))
            order = self._read_source(seed, epoch)
            if isinstance(order, range) and len(order) > MAX_SORTED:
                return order
            check_not_mask(order)
            return order if isinstance(order, Tensor) else as_index_tensor(order)

    def _read_source(self, seed: int, epoch: int) -> Iterable[int] | Tensor:
        if not callable(self.source):
            if hasattr(self.source, "set_epoch"):
                self.source.set_epoch(epoch)
            if isinstance(self.source, Iterator) and iter(self.source) is self.source:
                raise DataError(
                    "the sampler is an iterator, which is exhausted after one epoch. "
                    "Pass a list, a torch sampler, or a function of the epoch."
                )
            return self.source
        arguments = {"seed": seed, "epoch": epoch}
        accepted = {
            name: arguments[name] for name in inspect.signature(self.source).parameters.keys() & arguments
        }
        order: Iterable[int] | Tensor = self.source(**accepted) if accepted else self.source(epoch)
        return order


def as_sampler(sampler: object, *, shuffle: bool | None) -> Sampler:
    """Return the sampler for the arguments `sampler` and `shuffle` of a loader."""
    if sampler is None:
        return RandomSampler() if shuffle is None or shuffle else SequentialSampler()
    if isinstance(sampler, type):
        raise DataError(
            f"the sampler is the class {sampler.__name__}. Pass an object: {sampler.__name__}(…)."
        )
    if isinstance(sampler, Sampler):
        return sampler
    if type(sampler) is TorchSequentialSampler:
        return CustomSampler(range(len(sampler)))
    if callable(sampler) or isinstance(sampler, Iterable):
        return CustomSampler(sampler)
    raise DataError(
        f"sampler={sampler!r} is {a_type(sampler)}. Pass a sampler, a list of sample indices, "
        "or a function of the epoch that returns one."
    )


def has_fixed_indices(sampler: Sampler) -> bool:
    """Return whether a sampler returns the same indices with every seed.

    >>> has_fixed_indices(as_sampler([2, 0, 1], shuffle=None)), has_fixed_indices(RandomSampler())
    (True, False)
    """
    return type(sampler) is SequentialSampler or (isinstance(sampler, CustomSampler) and sampler.is_container)


def order_name(sampler: Sampler, count: int) -> str:
    """Return the name of the order of `count` samples; part of the cursor."""
    if type(sampler) is SortedRandomSampler:
        return RandomSampler.__name__
    name = type(sampler).__name__
    return f"{name}, on demand" if type(sampler) is RandomSampler and count > MAX_SORTED else name


def sampler_for_cursor(sampler: Sampler, order: str, count: int) -> Sampler:
    """Return the sampler whose order has this name: older cursors have a sorted order of any length."""
    if count > MAX_SORTED and type(sampler) in (RandomSampler, SortedRandomSampler):
        for kind in (RandomSampler, SortedRandomSampler):
            if type(sampler) is not kind and order_name(kind(), count) == order:
                return kind()
    return sampler


def _same_indices(one: Tensor | range, other: Tensor | range) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and one == other


def _range_order(indices: range, device: torch.device) -> Order:
    """Return the integers of a range."""
    start, step, count = indices.start, indices.step, len(indices)
    if count <= MAX_SORTED:
        return torch.arange(start, start + step * count, step, device=device)
    return LazyOrder(count, lambda positions: start + step * positions, device)

"""Samplers: which samples an epoch uses, and in which order."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from flodl.core.errors import DataError
from flodl.core.rng_state import preserve_rng_state

from .global_rng import seed_global_rng
from .order import permutation, sample_keys, stream_key


@runtime_checkable
class Sampler(Protocol):
    """Returns the indices of an epoch, as a pure function of its arguments."""

    def order(self, count: int, *, seed: int, epoch: int, device: torch.device) -> Tensor:
        """Return the indices, each below `count`, in the order of the epoch."""
        ...

    def length(self, count: int) -> int | None:
        """Return how many indices an epoch has, or None if only `order` can tell."""
        ...


class SequentialSampler:
    """Every sample once, from the first to the last."""

    def order(self, count: int, *, seed: int, epoch: int, device: torch.device) -> Tensor:
        return torch.arange(count, device=device)

    def length(self, count: int) -> int:
        return count


class RandomSampler:
    """Every sample once, in a different order each epoch."""

    def order(self, count: int, *, seed: int, epoch: int, device: torch.device) -> Tensor:
        return permutation(count, seed=seed, epoch=epoch, device=device)

    def length(self, count: int) -> int:
        return count


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
        self.weights = torch.as_tensor(weights, dtype=torch.float64, device="cpu").flatten()
        if not bool(torch.isfinite(self.weights).all()) or bool((self.weights < 0).any()):
            raise DataError(
                "WeightedSampler: a weight is negative, infinite or NaN. Pass finite weights >= 0."
            )
        usable = int((self.weights > 0).sum())
        if usable == 0:
            raise DataError("WeightedSampler: every weight is 0. Pass at least one weight above 0.")
        self.num_samples = (
            (len(self.weights) if replacement else usable) if num_samples is None else num_samples
        )
        self.replacement = replacement
        if self.num_samples < 1 or (not replacement and self.num_samples > usable):
            raise DataError(
                f"WeightedSampler: num_samples={self.num_samples} with {usable} weights above 0. "
                f"Pass 1 to {usable}, or replacement=True."
            )

    def order(self, count: int, *, seed: int, epoch: int, device: torch.device) -> Tensor:
        if len(self.weights) != count:
            raise DataError(
                f"WeightedSampler: {len(self.weights)} weights for {count} samples. Pass one per sample."
            )
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
        return self.num_samples


class CustomSampler:
    """The order of a function of the epoch, or of an iterable such as a torch sampler."""

    def __init__(self, source: Callable[..., Any] | Iterable[int]) -> None:
        check_no_generator(source)
        if not callable(source):
            _check_not_mask(source)
        self.source = source
        # Reading a container does not change it.
        self._is_pure = isinstance(source, list | tuple | range | Tensor | np.ndarray)

    def order(self, count: int, *, seed: int, epoch: int, device: torch.device) -> Tensor:
        indices = self._indices(seed, epoch)
        if not self._is_pure:  # checked once: an order of a million samples may take half a second
            if not torch.equal(indices, self._indices(seed, epoch)):
                raise DataError(
                    f"the sampler returned two different orders for epoch {epoch}: it keeps a counter or a "
                    "random state, so a resumed run would see a different order. Make the order depend only "
                    "on the epoch, with a method set_epoch(epoch) or as a function: sampler=lambda epoch: …"
                )
            self._is_pure = True
        if indices.dim() != 1 or indices.dtype.is_floating_point or len(indices) == 0:
            raise DataError(
                f"the sampler returned {tuple(indices.shape)} {indices.dtype} for epoch {epoch}. "
                "Return a non-empty list of sample indices."
            )
        low, high = int(indices.min()), int(indices.max())
        if low < 0 or high >= count:
            wrong = low if low < 0 else high
            raise DataError(
                f"the sampler returned index {wrong} for {count} samples. "
                f"Return indices from 0 to {count - 1}."
            )
        return indices.to(torch.int64).to(device, non_blocking=True)

    def length(self, count: int) -> int | None:
        return len(self.source) if isinstance(self.source, Sized) else None

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch to a sampler with `set_epoch`; its length may depend on it."""
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)

    def _indices(self, seed: int, epoch: int) -> Tensor:
        # Torch samplers use the global generators; seeding those per epoch makes the samplers pure.
        with preserve_rng_state():
            seed_global_rng(stream_key(seed, epoch, "order"))
            order = self._read_source(seed, epoch)
            _check_not_mask(order)
            return order if isinstance(order, Tensor) else _as_index_tensor(order)

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


def as_sampler(sampler: object, *, shuffle: bool) -> Sampler:
    """Return the sampler for the arguments `sampler` and `shuffle` of a loader."""
    if sampler is None:
        return RandomSampler() if shuffle else SequentialSampler()
    if isinstance(sampler, Sampler):
        return sampler
    if callable(sampler) or isinstance(sampler, Iterable):
        return CustomSampler(sampler)
    raise DataError(
        f"sampler={sampler!r} is a {type(sampler).__name__}. Pass a sampler, a list of sample indices, "
        "or a function of the epoch that returns one."
    )


def _as_index_tensor(order: Iterable[Any]) -> Tensor:
    try:
        return torch.as_tensor([operator.index(index) for index in order], dtype=torch.int64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the sampler returned something that is not a sample index: {error}. Return single indices; "
            "the loader groups them into batches of batch_size."
        ) from None


def _check_not_mask(order: Any) -> None:
    """Raise for a boolean mask, whose values would be read as the indices 1 and 0."""
    if isinstance(order, list | tuple):
        is_mask = any(isinstance(item, bool | np.bool_) for item in order)
        instead = "[index for index, selected in enumerate(mask) if selected]"
    else:
        dtype = str(getattr(order, "dtype", ""))
        is_mask = dtype in ("torch.bool", "bool")
        instead = "mask.nonzero().flatten()" if dtype == "torch.bool" else "numpy.flatnonzero(mask)"
    if is_mask:
        raise DataError(
            f"the sampler is a mask of {len(order)} booleans, not a list of sample indices. "
            f"Use sampler={instead}."
        )


def check_no_generator(sampler: Any) -> None:
    """Raise if a torch sampler has its own generator: its order would depend on earlier draws."""
    inner = getattr(sampler, "sampler", None)
    if getattr(sampler, "generator", None) is not None or getattr(inner, "generator", None) is not None:
        raise DataError(
            f"the {type(sampler).__name__} has its own generator, so a resumed run would see a different "
            "order. Remove the generator: flodl seeds the order from seed and epoch."
        )

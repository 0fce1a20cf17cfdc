"""Which samples an epoch takes, and in what order."""

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

from .global_rng import seed_globals
from .order import permutation, sample_keys, stream_key


@runtime_checkable
class Sampler(Protocol):
    """Gives the indices of an epoch, as a pure function of its arguments."""

    def order(self, count: int, *, seed: int, epoch: int, device: torch.device) -> Tensor:
        """Give the indices, each below `count`, in the order of that epoch."""
        ...

    def length(self, count: int) -> int | None:
        """Give how many indices an epoch has, or nothing where only `order` knows."""
        ...


class SequentialSampler:
    """Every sample once, from the first to the last."""

    def order(self, count: int, *, seed: int, epoch: int, device: torch.device) -> Tensor:
        return torch.arange(count, device=device)

    def length(self, count: int) -> int:
        return count


class RandomSampler:
    """Every sample once, in another order each epoch."""

    def order(self, count: int, *, seed: int, epoch: int, device: torch.device) -> Tensor:
        return permutation(count, seed=seed, epoch=epoch, device=device)

    def length(self, count: int) -> int:
        return count


class WeightedSampler:
    """Samples as often as their weights say; without replacement, each at most once.

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
            raise DataError("WeightedSampler: a weight is negative or not a number. Give weights from 0 up.")
        usable = int((self.weights > 0).sum())
        if usable == 0:
            raise DataError("WeightedSampler: every weight is 0. Give at least one weight above 0.")
        self.num_samples = (
            (len(self.weights) if replacement else usable) if num_samples is None else num_samples
        )
        self.replacement = replacement
        if self.num_samples < 1 or (not replacement and self.num_samples > usable):
            raise DataError(
                f"WeightedSampler: num_samples={self.num_samples} with {usable} weights above 0. "
                f"Give 1 to {usable}, or replacement=True."
            )

    def order(self, count: int, *, seed: int, epoch: int, device: torch.device) -> Tensor:
        if len(self.weights) != count:
            raise DataError(
                f"WeightedSampler: {len(self.weights)} weights for {count} samples. Give one for each."
            )
        # On the CPU for every device: sums of floating-point numbers depend on who adds them.
        key = stream_key(seed, epoch, "order")
        drawn = self.num_samples if self.replacement else count
        bits = sample_keys(key, torch.arange(drawn))
        uniform = (((bits >> 11) & (2**53 - 1)).to(torch.float64) + 0.5) * 2**-53
        if self.replacement:
            ends = self.weights.cumsum(0)
            chosen = torch.searchsorted(ends, uniform * ends[-1], right=True)
            chosen = chosen.clamp_(max=int(self.weights.nonzero()[-1]))
        else:
            # The smallest of exponential times with the weights as rates (Efraimidis and Spirakis).
            chosen = torch.argsort(-uniform.log() / self.weights, stable=True)[: self.num_samples]
        return chosen.to(device, non_blocking=True)

    def length(self, count: int) -> int:
        return self.num_samples


class CustomSampler:
    """The order that a function of the epoch gives, or that an iterable such as a torch sampler gives."""

    def __init__(self, source: Callable[..., Any] | Iterable[int]) -> None:
        refuse_generator(source)
        if not callable(source):
            _refuse_mask(source)
        self.source = source
        # What lies there as it is cannot change by being read.
        self._is_pure = isinstance(source, list | tuple | range | Tensor | np.ndarray)

    def order(self, count: int, *, seed: int, epoch: int, device: torch.device) -> Tensor:
        found = self._found(seed, epoch)
        if not self._is_pure:  # found out once: an order of a million samples may take half a second
            if not torch.equal(found, self._found(seed, epoch)):
                raise DataError(
                    f"the sampler gives two orders for epoch {epoch} when it is asked twice: it counts or "
                    "draws by itself, so a resumed run would see another order. Let the order depend on the "
                    "epoch alone, by a method set_epoch(epoch) or as a function: sampler=lambda epoch: …"
                )
            self._is_pure = True
        if found.dim() != 1 or found.dtype.is_floating_point or len(found) == 0:
            raise DataError(
                f"the sampler gives {tuple(found.shape)} {found.dtype} for epoch {epoch}. "
                "Give a list of sample numbers, at least one."
            )
        low, high = int(found.min()), int(found.max())
        if low < 0 or high >= count:
            wrong = low if low < 0 else high
            raise DataError(
                f"the sampler gives index {wrong} for {count} samples. Give numbers from 0 to {count - 1}."
            )
        return found.to(torch.int64).to(device, non_blocking=True)

    def length(self, count: int) -> int | None:
        return len(self.source) if isinstance(self.source, Sized) else None

    def tell_epoch(self, epoch: int) -> None:
        """Tell a sampler that wants to know it the epoch, which its length may depend on."""
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)

    def _found(self, seed: int, epoch: int) -> Tensor:
        # Torch samplers draw from the global generators: seeded for the epoch, they are pure as well.
        with preserve_rng_state():
            seed_globals(stream_key(seed, epoch, "order"))
            given = self._given(seed, epoch)
            _refuse_mask(given)
            return given if isinstance(given, Tensor) else _numbers(given)

    def _given(self, seed: int, epoch: int) -> Iterable[int] | Tensor:
        if not callable(self.source):
            if hasattr(self.source, "set_epoch"):
                self.source.set_epoch(epoch)
            if isinstance(self.source, Iterator) and iter(self.source) is self.source:
                raise DataError(
                    "the sampler is an iterator, which is used up after one epoch. "
                    "Give a list, a torch sampler, or a function of the epoch."
                )
            return self.source
        named = {"seed": seed, "epoch": epoch}
        taken = inspect.signature(self.source).parameters
        if set(taken) & set(named):
            given: Iterable[int] | Tensor = self.source(
                **{name: named[name] for name in named if name in taken}
            )
        else:
            given = self.source(epoch)
        return given


def as_sampler(sampler: object, *, shuffle: bool) -> Sampler:
    """Give the sampler that an argument stands for."""
    if sampler is None:
        return RandomSampler() if shuffle else SequentialSampler()
    if isinstance(sampler, Sampler):
        return sampler
    if callable(sampler) or isinstance(sampler, Iterable):
        return CustomSampler(sampler)
    raise DataError(
        f"sampler={sampler!r} is a {type(sampler).__name__}. Give a sampler, a list of sample numbers, "
        "or a function of the epoch that gives one."
    )


def _numbers(given: Iterable[Any]) -> Tensor:
    try:
        return torch.as_tensor([operator.index(index) for index in given], dtype=torch.int64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the sampler gives something that is no number of a sample: {error}. Give one number after "
            "another; the loader makes batches of them by batch_size."
        ) from None


def _refuse_mask(given: Any) -> None:
    """Refuse a yes or no for each sample, which would be read as the sample numbers 1 and 0."""
    if isinstance(given, list | tuple):
        is_mask = any(isinstance(item, bool | np.bool_) for item in given)
        instead = "[number for number, wanted in enumerate(mask) if wanted]"
    else:
        kind = str(getattr(given, "dtype", ""))
        is_mask = kind in ("torch.bool", "bool")
        instead = "mask.nonzero().flatten()" if kind == "torch.bool" else "numpy.flatnonzero(mask)"
    if is_mask:
        raise DataError(
            f"the sampler is a mask of {len(given)} times True or False, not a list of sample numbers. "
            f"Write sampler={instead}."
        )


def refuse_generator(sampler: Any) -> None:
    """Refuse a torch sampler with a generator of its own: its order would depend on what came before."""
    inner = getattr(sampler, "sampler", None)
    if getattr(sampler, "generator", None) is not None or getattr(inner, "generator", None) is not None:
        raise DataError(
            f"the {type(sampler).__name__} has a generator of its own, so a resumed run would see another "
            "order. Leave the generator out: flodl seeds the order by seed and epoch."
        )

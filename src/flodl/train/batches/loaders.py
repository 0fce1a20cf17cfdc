"""The loaders of a trainer: given by the user, or made once over data and kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from flodl.core import TrainError
from flodl.data import Loader

if TYPE_CHECKING:
    from .cursor import Handing

# The result of an evaluation does not depend on it.
EVALUATED_AT_ONCE = 256


class Feeding:
    """Give the loader of the training and that of the evaluation.

    A loader made over data is kept, so that a resident data set is brought to the device once, and a loop
    that was left early goes on where it was. Data that were written to since are brought there anew.
    """

    def __init__(self, device: torch.device, seed: int, handing: Handing) -> None:
        self._device, self._seed, self._handing = device, seed, handing
        self.training: Loader | None = None
        self._made_of: tuple[Any, int | None] | None = None
        self._evaluation: Loader | None = None
        self._evaluated: tuple[Any, int | None] | None = None

    @property
    def makes_loader(self) -> bool:
        """Whether the loader of the training was made here, from the trainer's seed."""
        return self._made_of is not None

    def for_training(self, data: Any, batch_size: int | None, *, epoch: int) -> Loader:
        """Give the loader that was given, or one over the data that begins at an epoch."""
        batch_size = _beside(data, batch_size)
        if isinstance(data, Loader):
            if data is not self.training:
                self._check(data)
                self.training, self._made_of = data, None
        elif self.training is None or not _same((data, batch_size), self._made_of):
            self.training = self._made(data, batch_size, seed=self._seed)
            self.training.set_epoch(epoch)
            self._made_of = (_listed(data), batch_size)
        elif self.training.is_stale and not self._handing.is_giving:
            place = self._handing.left(self.training)
            self.training = None  # first, so that the device need not have room for both
            self.training = self._made(data, batch_size, seed=self._seed)
            self.training.load_state_dict(place)
        assert self.training is not None
        return self.training

    def for_evaluation(self, data: Any, batch_size: int | None) -> Loader:
        """Give a loader that stands at the start of the data."""
        batch_size = _beside(data, batch_size)
        if isinstance(data, Loader):
            if data is self.training:
                raise TrainError("this loader feeds the training. Give the evaluation a loader of its own.")
            self._check(data)
            return _from_the_start(data)
        if not isinstance(data, DataLoader) and not (batch_size is None and self._takes_batches(data)):
            usual = None if self.training is None else self.training.batch_size
            batch_size = batch_size or usual or EVALUATED_AT_ONCE
        if self._evaluation is not None and self._evaluation.is_stale:
            self._evaluation = None
        if self._evaluation is None or not _same((data, batch_size), self._evaluated):
            self._evaluation = self._made(data, batch_size, shuffle=False)
            self._evaluated = (_listed(data), batch_size)
        return _from_the_start(self._evaluation)

    def _made(self, data: Any, batch_size: int | None, **order: Any) -> Loader:
        return Loader(data, batch_size, device=self._device, **order)

    def _takes_batches(self, data: Any) -> bool:
        """Say whether data are a list of batches, since the training took one for that."""
        if not isinstance(data, list) or self._made_of is None:
            return False
        given, size = self._made_of
        return isinstance(given, list) and size is None

    def _check(self, loader: Loader) -> None:
        if loader.device != self._device:
            raise TrainError(
                f"the loader gives batches on {loader.device}, and the model is on {self._device}. "
                "Write Loader(…, device=trainer.device)."
            )


def _beside(data: Any, batch_size: int | None) -> int | None:
    """Give the size to cut batches by: none where the data come in batches already."""
    if not isinstance(data, Loader | DataLoader):
        return batch_size
    if batch_size not in (None, data.batch_size):
        raise TrainError(
            f"batch_size={batch_size} beside a {type(data).__name__} whose batches are of "
            f"{data.batch_size}. Leave batch_size out, or give the data instead of the loader."
        )
    return None


@contextmanager
def place_kept(data: Any) -> Iterator[None]:
    """Put a loader back to where it stands, whatever is read of it meanwhile."""
    place = data.state_dict() if isinstance(data, Loader) and not data.gives_once else None
    try:
        yield
    finally:
        if place is not None:
            data.load_state_dict(place)


def refuse_iterator(eval_data: Any) -> None:
    """Refuse data for several evaluations that can be had once."""
    once = eval_data.gives_once if isinstance(eval_data, Loader) else isinstance(eval_data, Iterator)
    if once:
        raise _nothing_left()


def _from_the_start(loader: Loader) -> Loader:
    if loader.gives_once and (loader.epoch or loader.position):
        raise _nothing_left()
    loader.set_epoch(0)
    return loader


def _nothing_left() -> TrainError:
    return TrainError(
        "the data of the evaluation are an iterator and have nothing left for a second epoch. "
        "Give something that can be iterated again, such as a list or an object with __iter__."
    )


def num_batches(loader: Loader) -> int | None:
    """Give the batches of an epoch; None where nobody knows."""
    try:
        return len(loader)
    except TypeError:
        return None


def _listed(data: Any) -> Any:
    """Give a list or table of the same things, which stays as it is when the caller's is changed."""
    if type(data) is list:
        return list(data)
    return dict(data) if isinstance(data, Mapping) else data


def _same(given: tuple[Any, int | None], known: tuple[Any, int | None] | None) -> bool:
    """Say whether these are the very data of before; a tuple or table made anew of them counts too."""
    if known is None or given[1] != known[1]:
        return False
    new, old = given[0], known[0]
    if type(new) is type(old) and isinstance(new, tuple | list):
        return len(new) == len(old) and all(a is b for a, b in zip(new, old))
    if isinstance(new, Mapping) and isinstance(old, Mapping):
        return list(new) == list(old) and all(new[name] is old[name] for name in new)
    return new is old

"""The batch that was handed to the training loop and may not have been trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from flodl.data import Loader

from ..session import Session
from .samples import SampleCounts, num_samples_of_batch

# The epoch of a batch, and the positions of its samples where a loader provided it.
Place = tuple[int, tuple[int, int] | None]


class _Mark(NamedTuple):
    """The state before a batch: loader position, state of the source, batches done in the epoch."""

    position: int
    source: Any
    epoch_step: int


class BatchCursor:
    """Iterate over a loader, and rewind it to the first batch that was not trained on.

    An error or Ctrl-C may arrive between a batch and its update. The loader counts the batches that it
    returned; a run counts those it trained on, back to the start of an abandoned accumulation window.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        # The batch that was returned last, and its number of samples where the loader knows it.
        self.batch: Any = None
        self.num_samples: int | None = None
        self.counts = SampleCounts()
        self.is_iterating = False
        self._loader: Loader | None = None
        self._mark = self._window = _Mark(0, None, 0)
        self._updates = 0
        # The epoch and position of the loader after the last batch.
        self._after = (0, 0)
        self._source_after: Any = None

    def batches(self, loader: Loader) -> Iterator[Any]:
        """Yield the remaining batches of the loader's epoch."""
        session, step = self._session, self._session.train_step
        accumulates = step.settings.accumulate > 1
        state, epoch = loader.state_dict(), loader.epoch
        position, source = state["position"], state["source"]
        self.is_iterating = True
        try:
            for loaded in loader.with_positions():
                self._mark = _Mark(position, source, session.position.epoch_step)
                self._updates = step.updates
                if not accumulates or step.is_between_updates:
                    self._window = self._mark
                self.batch, after = loaded.batch, loaded.position
                self.num_samples = num_samples_of_batch(loader, self.batch, position, after, self.counts)
                # A copy: the source may change its state in place.
                position, source = after, deepcopy(loaded.source_state)
                self._loader, self._after, self._source_after = loader, (epoch, position), source
                del loaded
                yield self.batch
            self.forget()
        finally:
            self.is_iterating = False

    def is_of_epoch(self, batch: Any) -> bool:
        """Return whether a batch is trained on in an epoch: inside of its loop, or the one it was left at."""
        is_left_at = self._loader is not None and (batch is self.batch or _has_same_parts(batch, self.batch))
        return self.is_iterating or is_left_at

    def num_samples_of(self, batch: Any) -> int | None:
        """Return the number of samples of a batch if it is the last one, or a copy with the same parts."""
        return self.num_samples if batch is self.batch or _has_same_parts(batch, self.batch) else None

    def whole_of(self, *forms: Any) -> Any:
        """Return the last batch if one of the forms of a batch has the same parts, else the first form."""
        is_last = any(_has_same_parts(form, self.batch) for form in forms)
        is_part = len(forms[-1]) == 1 and forms[-1][0] is self.batch
        return self.batch if is_last or is_part else forms[0]

    def place_of(self, batch: Any) -> Place:
        """Return the epoch of a batch and the positions of its samples; None for a batch of the user."""
        epoch, stop = self._after
        is_ours = batch is self.batch or _has_same_parts(batch, self.batch)
        return epoch, (self._mark.position, stop) if is_ours else None

    def has_read(self, loader: Loader) -> bool:
        """Return whether a batch of the current epoch was read from a loader."""
        return self._loader is loader

    def forget(self) -> None:
        """Treat every batch so far as trained on."""
        self._loader = None

    def return_to(self, loader: Loader) -> None:
        """Move a loader that the program looped over in the meantime back to where the run was."""
        if not loader.is_left_early or loader.is_one_shot:
            return
        if self._loader is not loader:
            loader.rewind()
            return
        epoch, position = self._after
        loader.set_epoch(epoch)
        loader.load_state_dict({**loader.state_dict(), "position": position, "source": self._source_after})

    def rewind(self, loader: Loader) -> None:
        """Rewind the loader to the first batch that was not trained on; an iterator cannot be rewound."""
        if self._loader is not loader or loader.is_one_shot:
            return
        mark = self._untrained()
        if mark is not None:
            loader.load_state_dict(_state_at(loader, mark))
            self._session.position.epoch_step = mark.epoch_step
        self.forget()

    def release(self, loader: Loader) -> dict[str, Any]:
        """Stop using a loader, and return the state from which another one over the same data continues."""
        mark, state = self._untrained() if self._loader is loader else None, self.state_dict(loader)
        if mark is not None:
            self._session.position.epoch_step = mark.epoch_step
        self.forget()
        return state

    def abandon_window(self) -> None:
        """Treat the batches of an incomplete accumulation window as not trained on."""
        session, step = self._session, self._session.train_step
        if step.is_between_updates:
            return
        step.give_up_window()
        if self._loader is not None:
            self._mark = self._window
            session.position.epoch_step = self._window.epoch_step

    def state_dict(self, loader: Loader) -> dict[str, Any]:
        """Return the state of the loader after the last batch that was trained on."""
        mark = self._untrained() if self._loader is loader else None
        return loader.state_dict() if mark is None else _state_at(loader, mark)

    def _untrained(self) -> _Mark | None:
        """Return the state before the first batch that was not trained on, if there is one."""
        session, loader = self._session, self._loader
        if loader is None or (loader.epoch, loader.position) != self._after:
            return None
        if session.position.epoch_step != self._mark.epoch_step or session.updates != self._updates:
            return None
        # An open window has the gradients of its batches; an abandoned one has lost them.
        return self._window if session.train_step.is_between_updates else self._mark


def _has_same_parts(one: Any, other: Any) -> bool:
    """Return whether two batches are tuples, lists or dictionaries of the same objects.

    >>> x, y = object(), object()
    >>> _has_same_parts((x, y), [x, y]), _has_same_parts({"x": x, "y": y}, {"y": y, "x": x})
    (True, True)
    >>> _has_same_parts((x,), (x, y)), _has_same_parts({"x": x}, {"x": y})
    (False, False)
    """
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(mine is theirs for mine, theirs in zip(one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(one[name] is other[name] for name in one)
    return False


def _state_at(loader: Loader, mark: _Mark) -> dict[str, Any]:
    return {**loader.state_dict(), "position": mark.position, "source": mark.source}

"""The batches of the last updates: where they are in the data, and the newest ones themselves."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from flodl.data import Loader

from ..session import Session
from .cursor import BatchCursor, Place

# A report about a non-finite value comes up to two checks late, which are sixteen updates apart.
MOST_UPDATES = 32
# On the CPU the report comes at once; of a longer window, earlier batches are read again.
MOST_KEPT = 4


class RecentBatch(NamedTuple):
    """A batch that was trained on: the update it was part of, and its place where a loader provided it."""

    update: int
    epoch: int
    step: int
    # The positions of its samples in the epoch, from start to stop.
    span: tuple[int, int] | None
    batch: Any


class RecentBatches:
    """Remember the batches of the last updates; on a GPU without the batches themselves."""

    def __init__(self, session: Session, cursor: BatchCursor) -> None:
        self._session, self._cursor = session, cursor
        accumulate = session.train_step.settings.accumulate
        self._accumulates = accumulate > 1
        # Updates, whether the window was complete, the number of the batch, and its place: cheap to add.
        self._places: deque[tuple[int, bool, int, Place]] = deque(maxlen=MOST_UPDATES * accumulate)
        self._kept: deque[Any] = deque(maxlen=min(accumulate, MOST_KEPT))
        self._keeps = session.device.type == "cpu"

    def add(self, batch: Any) -> None:
        """Add a batch after it was trained on."""
        session, step = self._session, self._session.train_step
        is_complete = not self._accumulates or step.is_between_updates
        place = self._cursor.place_of(batch)
        self._places.append((step.updates, is_complete, session.position.epoch_step, place))
        if self._keeps:
            self._kept.append(batch)

    def since(self, update: int) -> list[RecentBatch]:
        """Return the batches of the updates after this one."""
        places = [
            RecentBatch(updates + (not is_complete), epoch, step, span, None)
            for updates, is_complete, step, (epoch, span) in self._places
        ]
        kept = list(self._kept)
        for index, batch in enumerate(reversed(kept), start=1):
            if index <= len(places):
                places[-index] = places[-index]._replace(batch=batch)
        return [place for place in places if place.update > update]

    def clear(self) -> None:
        """Forget everything."""
        self._places.clear()
        self._kept.clear()

    def samples_of(self, place: RecentBatch) -> list[int]:
        """Return the indices of the samples of a batch in the source; none if they are not known."""
        loader = self._session.loader
        if loader is None or place.span is None or loader.batch_size is None:
            return []
        return loader.sample_indices(*place.span, epoch=place.epoch) or []

    def read(self, place: RecentBatch) -> Any:
        """Return a batch, read again if it was not kept; None if that is not possible."""
        loader: Loader | None = self._session.loader
        if place.batch is not None or place.span is None or loader is None or loader.batch_size is None:
            return place.batch
        return loader.read_again(*place.span, epoch=place.epoch)

"""What modules store while a region is recorded, such as tags: shown again after every replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from itertools import compress
from typing import Any, TypeVar

from flodl.observe import LastValues, RecordedValues

T = TypeVar("T")


class StoredValues:
    """The values that a recorded region stored.

    They are outputs of the recording: it keeps them alive, and every replay writes to them.

    >>> tags, unused = LastValues(()), LastValues(())
    >>> stored = StoredValues([tags, unused])
    >>> region = stored.watching(lambda value: setattr(tags, "values", (value,)))
    >>> region("recorded")
    >>> tags.values = ("by Python",)
    >>> stored.show()
    >>> tags.stored, [holder is tags for holder, _ in stored.pairs]
    (('recorded',), [True])
    """

    def __init__(self, holders: Iterable[LastValues]) -> None:
        self._holders = list(holders)
        # Where values are read, and those that the region has stored there.
        self.pairs: list[tuple[LastValues, RecordedValues]] = []

    def watching(self, region: Callable[..., T]) -> Callable[..., T]:
        """Return the region as it is to be recorded: it also notes what it stores."""

        @wraps(region, updated=())
        def watched(*batch: Any) -> T:
            before = [holder.values for holder in self._holders]
            result = region(*batch)
            # None tells readers that the values of the last call were not kept.
            changed = (one.values is not then or then is None for one, then in zip(self._holders, before))
            written = compress(self._holders, changed)
            self.pairs = [(holder, RecordedValues(holder.values)) for holder in written]
            return result

        return watched

    def show(self) -> None:
        """Let readers see the values of this recording, as after a call in Python."""
        for holder, values in self.pairs:
            holder.values = values

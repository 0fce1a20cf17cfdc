"""Which samples of the current epoch are trained: as a cursor on one device, as ranges on several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flodl.core import TrainError
from flodl.distributed.coordination import Coordinator
from flodl.distributed.coverage import Epochs

from .report import Coverage

Ranges = Sequence[Sequence[int]]


def start_state(
    *, num_samples: int, unit: int, num_epochs: int, epoch: int, committed: Ranges, updates: int
) -> dict[str, Any]:
    """Return the state of a coordinator that starts within an epoch; `unit` is the samples of an update.

    >>> state = start_state(
    ...     num_samples=100, unit=10, num_epochs=3, epoch=1, committed=[(0, 20), (30, 40)], updates=13
    ... )
    >>> state["epochs"]["pools"][0]["returned"], state["committed"]
    ([[20, 30]], 13)
    """
    for bound in (bound for each in committed for bound in each):
        if bound % unit and bound != num_samples:
            raise TrainError(
                f"the saved run stopped after sample {bound} of an epoch, which is not a multiple of the "
                f"{unit} samples of an update. Resume with the original batch_size and accumulate."
            )
    cursor = max((stop for _, stop in committed), default=0)
    pool = {
        "total": num_samples,
        "batch_size": unit,
        "epoch": epoch,
        "cursor": cursor,
        "returned": _holes(committed),
        "committed": [list(each) for each in committed],
        "next_ticket": 0,
        "leases": [],
    }
    fresh = Epochs(num_samples=num_samples, batch_size=unit, num_epochs=num_epochs).state()
    epochs = Epochs.from_state({**fresh, "current": epoch, "pools": [pool]})
    return {**Coordinator(epochs).state(), "committed": updates}


def _holes(committed: Ranges) -> list[list[int]]:
    stops = [0, *(stop for _, stop in committed)]
    return [[stop, start] for stop, (start, _) in zip(stops, committed) if start > stop]


def committed_in(coordinator: Mapping[str, Any], epoch: int) -> list[list[int]]:
    """Return the committed ranges of an epoch, from the state of a coordinator."""
    pools = coordinator["epochs"]["pools"]
    found: Ranges = next((pool["committed"] for pool in pools if pool["epoch"] == epoch), [])
    return [list(each) for each in found]


def is_prefix(committed: Ranges) -> bool:
    """Return whether one device can continue after these positions.

    >>> is_prefix([]), is_prefix([(0, 8)]), is_prefix([(4, 8)]), is_prefix([(0, 4), (8, 12)])
    (True, True, False, False)
    """
    return not committed or (len(committed) == 1 and committed[0][0] == 0)


def check_ranges(parts: Mapping[str, Any], *, on_ranks: bool) -> None:
    """Raise if one device cannot continue a run that several devices have saved within an epoch."""
    saved = parts.get("ranks")
    if on_ranks or not saved or not parts["trainer"]["epoch_step"] or is_prefix(saved["committed"]):
        return
    raise TrainError(
        "several devices have trained parts of an epoch that are not one after the other: samples "
        f"{', '.join(f'{start} to {stop}' for start, stop in saved['committed'][:4])}. One device continues "
        "after a sample, and would train some twice. Nothing was loaded. Resume with devices=[…], or from a "
        "bundle of the end of an epoch."
    )


def num_batches_in(committed: Ranges, batch_size: int) -> int:
    """Return how many batches these positions are."""
    return sum(-(-(stop - start) // batch_size) for start, stop in committed)


class CoverageCount:
    """Counts which samples of each epoch are committed.

    >>> count = CoverageCount(num_samples=8)
    >>> for epoch, ranges in ((0, [(0, 4)]), (0, [(4, 8)]), (1, [(2, 6)])):
    ...     count.add(epoch, ranges)
    >>> count.report()
    Coverage(num_samples=8, epochs=1, partial=4, missing=0, repeated=0)
    """

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        # Of epochs that are not complete: sorted ranges that do not touch.
        self._open: dict[int, list[tuple[int, int]]] = {}
        self._num_complete = self._num_repeated = 0
        self._last_complete = -1

    def resume(self, epoch: int, committed: Ranges) -> None:
        """These samples were trained before."""
        self._open[epoch] = [(start, stop) for start, stop in committed]

    def add(self, epoch: int, ranges: Ranges) -> None:
        found = self._open.setdefault(epoch, [])
        for start, stop in ranges:
            merged = self._merge(found, start, stop)
            found = self._open[epoch] = merged
        if found == [(0, self._num_samples)]:
            del self._open[epoch]
            self._num_complete += 1
            self._last_complete = max(self._last_complete, epoch)

    def _merge(self, found: list[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
        self._num_repeated += sum(max(0, min(stop, b) - max(start, a)) for a, b in found)
        touching = [each for each in found if each[0] <= stop and each[1] >= start]
        whole = (min([start, *(a for a, _ in touching)]), max([stop, *(b for _, b in touching)]))
        return sorted([*(each for each in found if each not in touching), whole])

    def report(self) -> Coverage:
        counts = {epoch: sum(b - a for a, b in found) for epoch, found in self._open.items()}
        # Ranks may begin an epoch before the one before it is complete, but they do not complete it.
        passed = [count for epoch, count in counts.items() if epoch < self._last_complete]
        return Coverage(
            self._num_samples,
            self._num_complete,
            sum(counts.values()) - sum(passed),
            self._num_samples * len(passed) - sum(passed),
            self._num_repeated,
        )

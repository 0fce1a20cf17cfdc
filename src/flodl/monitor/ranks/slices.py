"""What a rank did over time, as slices: exact where they are long, merged where there are too many."""

from __future__ import annotations

from collections.abc import Sequence

# Start, end, and the seconds of computing, reducing and waiting in between; the rest is a pause.
Slice = tuple[float, float, float, float, float]
# A moment, and the number of syncs since the one before.
SyncMark = tuple[float, int]


def thin(slices: Sequence[Slice], most: int) -> list[Slice]:
    """Merge neighboring short slices if there are more than `most`.

    The seconds of a merged slice are the sums of its parts, so totals do not change.

    >>> thin([(0.0, 1.0, 1.0, 0.0, 0.0), (1.0, 2.0, 0.0, 0.0, 1.0), (2.0, 3.0, 1.0, 0.0, 0.0)], 2)
    [(0.0, 3.0, 2.0, 0.0, 1.0)]
    """
    if len(slices) <= most:
        return list(slices)
    longest_s = 4.0 * (slices[-1][1] - slices[0][0]) / most
    # An outlier may be as long as all others together.
    while True:
        found = _merge(slices, longest_s)
        if len(found) <= most:
            return found
        longest_s *= 2.0


def _merge(slices: Sequence[Slice], longest_s: float) -> list[Slice]:
    found: list[Slice] = []
    for each in slices:
        if found and each[1] - found[-1][0] <= longest_s:
            start, _, compute, reduce, wait = found[-1]
            found[-1] = (start, each[1], compute + each[2], reduce + each[3], wait + each[4])
        else:
            found.append(each)
    return found


def thin_syncs(marks: Sequence[SyncMark], most: int) -> list[SyncMark]:
    """Merge neighboring syncs if there are more than `most`; a merged one has their number.

    >>> thin_syncs([(0.0, 1), (1.0, 1), (2.0, 3)], 2)
    [(2.0, 5)]
    """
    if len(marks) <= most:
        return list(marks)
    longest_s = 2.0 * (marks[-1][0] - marks[0][0]) / most or 1.0
    while True:
        found: list[SyncMark] = []
        start_s = -float("inf")
        for time_s, count in marks:
            if found and time_s - start_s <= longest_s:
                found[-1] = (time_s, found[-1][1] + count)
            else:
                start_s = time_s
                found.append((time_s, count))
        if len(found) <= most:
            return found
        longest_s *= 2.0


def thin_points(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Leave out points of a line between the first and the last, evenly, if there are more than `most`.

    >>> thin_points([(0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 4.0)], 3)
    [(0.0, 1.0), (2.0, 3.0), (3.0, 4.0)]
    """
    if len(points) <= most:
        return list(points)
    last = len(points) - 1
    return [points[round(index * last / (most - 1))] for index in range(most)]

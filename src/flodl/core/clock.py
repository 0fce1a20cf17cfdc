"""Clock readings among the attributes of an object: when it was created says nothing about a run."""

from __future__ import annotations

import math
import os
import time
from functools import cache
from pathlib import Path
from typing import Any

# What stands for a reading in the record of a run.
READING = "a time of this process"
_IMPORTED = time.time()
# Importing torch takes seconds, and a program may receive its own start time as an argument.
_EARLIER_S = 60.0
# A wall-clock time of this century.
_LEAST_WALL_S = 1e9


def is_reading(value: Any) -> bool:
    """Return whether a value is a clock reading taken since this process began.

    It is one of `time.time`, or one of `time.perf_counter` or `time.monotonic`, which have nine decimals.

    >>> is_reading(time.time()), is_reading(time.time() - 86_400 * 365), is_reading(0.1)
    (True, False, False)
    """
    if not isinstance(value, float):
        return False
    now = time.time()
    age = now - _start_of_process()
    if now - age - _EARLIER_S <= value <= now:
        return True
    clocks = (time.perf_counter(), time.monotonic())
    is_since_then = any(one - age - 1 <= value <= one for one in clocks)
    return is_since_then and _is_in_nanoseconds(value)


def is_same_reading(one: Any, other: Any) -> bool:
    """Return whether one value stands for a reading, and the other is a reading from an earlier process.

    Earlier versions of flodl recorded those.

    >>> is_same_reading(READING, 1.7e9), is_same_reading(READING, 0.5), is_same_reading(0.5, 0.5)
    (True, False, False)
    """
    if one != READING:
        return other == READING and is_same_reading(other, one)
    if not isinstance(other, float):
        return False
    return other < time.time() if other > _LEAST_WALL_S else _is_in_nanoseconds(other)


def _is_in_nanoseconds(value: float) -> bool:
    """Return whether a number has nine decimals: a computed one has more, one written by hand has fewer.

    >>> [_is_in_nanoseconds(one) for one in (3296.258004472, 3296.25, 768**0.75, 100.0)]
    [True, False, False, False]
    """
    is_rounded = abs(value - round(value, 9)) <= 2 * math.ulp(value)
    return is_rounded and abs(value - round(value, 4)) > 1e-9


@cache
def _start_of_process() -> float:
    """Return when this process began; where that is unknown, when this module was imported."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED
    return min(time.time() - max(age, 0.0), _IMPORTED)

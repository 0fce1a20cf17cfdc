"""What a monitor is given, looked at before anything is done with it."""

from __future__ import annotations

import operator
from typing import Any

from flodl.core.errors import MonitorError

from .events import KINDS, Event

STATUSES = ("finished", "stopped", "failed")
LEVELS = ("info", "warning", "error")
NEEDED: dict[str, frozenset[str]] = {
    "epoch": frozenset({"epoch"}),
    "metrics": frozenset({"step", "metrics"}),
    "progress": frozenset({"epoch", "step"}),
    "tier": frozenset({"tier"}),
    "save": frozenset({"path"}),
    "alert": frozenset({"message"}),
    "gc": frozenset({"duration_s"}),
    "sync": frozenset({"duration_s"}),
    "run_end": frozenset({"status"}),
}


def whole(name: str, value: Any, advice: str, *, most: int | None = None) -> int:
    """Give a whole number from 0 to `most`, or say what is wrong with it.

    >>> whole("total_epochs", "runs/x", "Give the number of epochs first, as in Monitor(10, 'runs/x').")
    Traceback (most recent call last):
    flodl.core.errors.MonitorError: total_epochs is 'runs/x'. Give the number of epochs first, as in ...
    """
    if type(value) is int and value >= 0 and (most is None or value <= most):
        return value
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if number < 0 or (most is not None and number > most):
        raise MonitorError(f"{name} is {value!r}. {advice}")
    return number


def one_of(name: str, value: Any, known: tuple[str, ...]) -> str:
    """Give a word that is known, or say which are."""
    if value not in known:
        raise MonitorError(f"{name} is {value!r}. It is one of {', '.join(known)}.")
    return str(value)


def event(given: Event) -> None:
    """Refuse an event of an unknown kind, or one that lacks what every view needs of its kind.

    >>> event(Event("alert", {"mesage": "hot"}))
    Traceback (most recent call last):
    flodl.core.errors.MonitorError: an alert event has no message. Give it among its data...
    """
    needed = NEEDED.get(given.kind)
    if needed is None:
        if given.kind not in KINDS:
            raise MonitorError(f"{given.kind!r} is no kind of event. There are {', '.join(KINDS)}.")
    elif not needed <= given.data.keys():
        absent = " and no ".join(sorted(needed - given.data.keys()))
        article = "an" if given.kind[0] in "ae" else "a"
        raise MonitorError(
            f"{article} {given.kind} event has no {absent}. Give it among its data; "
            "flodl.monitor.events lists what each kind has."
        )


def port(value: Any) -> int:
    """Give a port that can be listened on."""
    return whole("port", value, "Give a port from 1 to 65535, or 0 for any that is free.", most=65535)

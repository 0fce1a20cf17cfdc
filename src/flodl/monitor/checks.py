"""What a monitor is given, looked at before anything is done with it."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
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
    if not isinstance(given, Event):
        raise MonitorError(f"{given!r} is no event. Give one, as in Event('alert', {{'message': 'hot'}}).")
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


def seconds(name: str, value: Any) -> float:
    """Give a time that has passed, or say what is wrong with it.

    >>> seconds("duration", -1)
    Traceback (most recent call last):
    flodl.core.errors.MonitorError: duration is -1. Give seconds, 0 or more.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
        raise MonitorError(f"{name} is {value!r}. Give seconds, 0 or more.")
    return float(value)


def rate(value: Any) -> float | None:
    """Give values in a second, or None for all of them."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if value is not None and not (is_number and value > 0):
        raise MonitorError(f"step_rate is {value!r}. Give values in a second, or None for all of them.")
    return value if value is None else float(value)


def of_type(name: str, value: Any, kind: type | tuple[type, ...], advice: str) -> None:
    """Refuse what is neither absent nor of a type."""
    if value is not None and not isinstance(value, kind):
        raise MonitorError(f"{name} is {value!r}. {advice}")


def listed(name: str, value: Any, fits: Callable[[Any], bool], what: str) -> list[Any]:
    """Give a list of things that fit.

    >>> listed("views", print, callable, "callables")
    Traceback (most recent call last):
    flodl.core.errors.MonitorError: views is <built-in function print>. Give a list of callables...
    """
    try:
        found = list(value)
    except TypeError:
        found = [None]
    misfit = next((item for item in found if not fits(item)), None)
    if misfit is not None or None in found:
        shown = value if misfit is None else misfit
        place = "is" if misfit is None else "has"
        raise MonitorError(f"{name} {place} {shown!r}. Give a list of {what}, as in {name}=[…].")
    return found


def is_sink(value: Any) -> bool:
    """Say whether something can be written to as a sink."""
    if isinstance(value, type):  # Csv instead of Csv(path)
        return False
    return callable(getattr(value, "write", None)) and callable(getattr(value, "close", None))


def run_options(
    run_dir: Any, name: Any, config: Any, origins: Any, *, console: Any, resources: Any, rank: Any
) -> None:
    """Look at what a monitor is made with."""
    if run_dir is not None and (not isinstance(run_dir, str | os.PathLike) or not os.fspath(run_dir)):
        raise MonitorError(f"run_dir is {run_dir!r}. Name a folder, as in 'runs/first', or leave it out.")
    of_type("name", name, str, "Give a text.")
    of_type("config", config, Mapping, "Give a dict, such as vars(arguments).")
    of_type("origins", origins, Mapping, "Give a dict of dotted paths and where their values come from.")
    for option, value in (("console", console), ("resources", resources)):
        if not isinstance(value, bool):
            raise MonitorError(f"{option} is {value!r}. It is True or False.")
    whole("rank", rank, "Ranks count from 0.")


def token(value: Any) -> None:
    """Refuse a token that is no text, or that everybody would guess."""
    if value is not None and (not isinstance(value, str) or not value):
        raise MonitorError(f"token is {value!r}. Give a text that others cannot guess, or leave it out.")


def file(path: Any) -> Path:
    """Give the path of a file that can be written, as far as that is seen before."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise MonitorError(f"{path!r} is no path. Name the file to write.")
    if Path(path).is_dir():
        raise MonitorError(f"{os.fspath(path)!r} is a folder. Name the file to write in it.")
    return Path(path)

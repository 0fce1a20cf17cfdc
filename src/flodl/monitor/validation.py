"""Checks of the arguments and events that a monitor receives."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from flodl.core.errors import MonitorError
from flodl.core.files import expand_user
from flodl.core.formats import counted

from .events import KINDS, REQUIRED, Event

STATUSES = ("finished", "stopped", "failed")
LEVELS = ("info", "warning", "error")
# Names that others use for an argument of a monitor, and what to write here.
ELSEWHERE = {
    **dict.fromkeys(("epochs", "num_epochs", "max_epochs"), "Write total_epochs=…."),
    **dict.fromkeys(("dir", "log_dir", "logdir", "save_dir", "path", "folder"), "Write run_dir=…."),
    **dict.fromkeys(("project", "title"), "Write name=…."),
    **dict.fromkeys(("port", "host", "serve"), "Call monitor.serve(port=…) afterwards."),
}

ELSEWHERE_IN_CALLS = {
    **dict.fromkeys(("total", "total_steps", "steps", "max_steps"), "Write num_steps=…."),
    **dict.fromkeys(("seconds", "time_s", "duration_s"), "Write duration=…."),
}
EXAMPLES = {
    "progress": "Write monitor.progress(epoch, step, num_steps).",
    "alert": "Write monitor.alert('the loss is high', level='info').",
    "describe": "Write monitor.describe({'lr': 0.1}).",
    "watch": "Write monitor.watch(model).",
    "emit": "Write monitor.emit(Event('alert', {'message': 'hot'})).",
    "serve": "Write monitor.serve(port=3000).",
    "save_html": "Write monitor.save_html('run.html').",
    "export_csv": "Write monitor.export_csv('run.csv').",
    "write_log": "Write monitor.write_log('run.log').",
}


def non_negative_int(name: str, value: Any, advice: str, *, most: int | None = None) -> int:
    """Return an integer from 0 to `most`, or raise with `advice`.

    >>> non_negative_int("total_epochs", "runs/x", "Pass the number of epochs first: Monitor(10, 'runs/x').")
    Traceback (most recent call last):
    flodl.core.errors.MonitorError: total_epochs is 'runs/x'. Pass the number of epochs first: ...
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


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return a value if it is allowed, or raise with the allowed values."""
    if value not in allowed:
        raise MonitorError(f"{name} is {value!r}. Expected one of {', '.join(allowed)}.")
    return str(value)


def event(value: Event) -> None:
    """Raise if an event has an unknown kind or lacks a required field.

    >>> event(Event("alert", {"mesage": "hot"}))
    Traceback (most recent call last):
    flodl.core.errors.MonitorError: an alert event has no message. Add it to its data...
    """
    if not isinstance(value, Event):
        raise MonitorError(
            f"expected an event, got {value!r}. Pass one, as in Event('alert', {{'message': 'hot'}})."
        )
    if not isinstance(value.data, Mapping):
        raise MonitorError(f"the data of the event is {value.data!r:.60}. Pass a dict of its fields.")
    required = REQUIRED.get(value.kind)
    if required is None:
        if value.kind not in KINDS:
            raise unknown_kind(value.kind)
    elif not required <= value.data.keys():
        missing = " and no ".join(sorted(required - value.data.keys()))
        article = "an" if value.kind[0] in "ae" else "a"
        raise MonitorError(
            f"{article} {value.kind} event has no {missing}. Add it to its data; "
            "flodl.monitor.events lists the fields of each kind."
        )


def unknown_kind(kind: object) -> MonitorError:
    """Return the error for a kind of event that does not exist."""
    return MonitorError(f"unknown kind of event {kind!r}. Expected one of {', '.join(KINDS)}.")


def kinds(value: Any) -> frozenset[str] | None:
    """Return a set of kinds of events, or None for all of them; raise for an unknown kind.

    >>> kinds(["epochs"])
    Traceback (most recent call last):
    flodl.core.errors.MonitorError: unknown kind of event 'epochs'. Expected one of run_start, epoch, ...
    """
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Iterable):
        advice = f"kinds=[{value!r}]" if value in KINDS else "kinds=['epoch', 'alert']"
        raise MonitorError(f"kinds is {value!r}. Pass a list of kinds of events, as in {advice}.")
    found = list(value)
    for kind in found:
        if kind not in KINDS:
            raise unknown_kind(kind)
    return frozenset(found)


def port(value: Any) -> int:
    """Return a valid port number, or raise."""
    return non_negative_int("port", value, "Pass a port from 1 to 65535, or 0 for any free one.", most=65535)


def seconds(name: str, value: Any) -> float:
    """Return a finite number of seconds of at least 0, or raise.

    >>> seconds("duration", -1)
    Traceback (most recent call last):
    flodl.core.errors.MonitorError: duration is -1. Pass a number of seconds, 0 or more.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
        raise MonitorError(f"{name} is {value!r}. Pass a number of seconds, 0 or more.")
    return float(value)


def step_rate(value: Any) -> float | None:
    """Return a positive number of values per second, or None for all of them; raise for anything else."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if value is not None and not (is_number and value > 0):
        raise MonitorError(
            f"step_rate is {value!r}. Pass a number of values per second, or None for all of them."
        )
    return value if value is None else float(value)


def of_type(name: str, value: Any, kind: type | tuple[type, ...], advice: str) -> None:
    """Raise if a value is neither None nor of a type."""
    if value is not None and not isinstance(value, kind):
        raise MonitorError(f"{name} is {value!r}. {advice}")


def list_of(name: str, value: Any, is_valid: Callable[[Any], bool], what: str) -> list[Any]:
    """Return a list of valid items, or raise.

    >>> list_of("views", print, callable, "callables")
    Traceback (most recent call last):
    flodl.core.errors.MonitorError: views is <built-in function print>. Pass a list of callables...
    """
    try:
        found = list(value)
    except TypeError:
        found = [None]
    invalid = next((item for item in found if not is_valid(item)), None)
    if invalid is not None or None in found:
        shown = value if invalid is None else invalid
        verb = "is" if invalid is None else "contains"
        raise MonitorError(f"{name} {verb} {shown!r}. Pass a list of {what}, as in {name}=[…].")
    return found


def is_sink(value: Any) -> bool:
    """Return whether a value has the methods of a sink."""
    if isinstance(value, type):  # Csv instead of Csv(path)
        return False
    return callable(getattr(value, "write", None)) and callable(getattr(value, "close", None))


def run_options(
    run_dir: Any, name: Any, config: Any, origins: Any, *, console: Any, resources: Any, rank: Any
) -> None:
    """Raise if an option of `Monitor` is invalid."""
    if run_dir is not None and (not isinstance(run_dir, str | os.PathLike) or not os.fspath(run_dir)):
        raise MonitorError(f"run_dir is {run_dir!r}. Pass a folder, as in 'runs/first', or omit it.")
    of_type("name", name, str, "Pass a string.")
    settings({} if config is None else config, origins, name="config")
    for option, value in (("console", console), ("resources", resources)):
        if not isinstance(value, bool):
            raise MonitorError(f"{option} is {value!r}. Pass True or False.")
    non_negative_int("rank", rank, "Ranks count from 0.")


def settings(value: Any, origins: Any, *, name: str = "settings") -> None:
    """Raise if settings or their origins are not dicts."""
    if not isinstance(value, Mapping):
        raise MonitorError(f"{name} is {value!r}. Pass a dict, such as vars(arguments).")
    of_type("origins", origins, Mapping, "Pass a dict that maps dotted paths to the origins of their values.")


def token(value: Any) -> None:
    """Raise if a token is not a string or is empty."""
    if value is not None and (not isinstance(value, str) or not value):
        raise MonitorError(f"token is {value!r}. Pass a string that others cannot guess, or omit it.")


def file(path: Any) -> Path:
    """Return the path of a file to write, or raise if it is not a path or is a folder."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise MonitorError(f"expected a path, got {path!r}. Pass the file to write.")
    target = expand_user(path)
    if target.is_dir():
        raise MonitorError(f"{os.fspath(path)!r} is a folder. Pass the file to write in it.")
    _check_parents(target)
    return target


def folder(path: Any) -> Path:
    """Return the path of a folder to write to, or raise if it cannot be one."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise MonitorError(f"expected a folder, got {path!r}. Pass its path; '.' is the working directory.")
    target = expand_user(path)
    if target.exists() and not target.is_dir():
        raise MonitorError(f"{os.fspath(path)!r} is a file. Pass a folder.")
    _check_parents(target)
    return target


def _check_parents(target: Path) -> None:
    if blocked := next((parent for parent in target.parents if parent.is_file()), None):
        raise MonitorError(f"cannot write to '{target}': '{blocked}' is a file, not a folder.")


def tables(given: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return tables as plain data: names of classes, and a list of numbers or of rows of numbers.

    >>> tables({"f1": {"labels": ["cat", "dog"], "values": [0.9]}})
    Traceback (most recent call last):
    flodl.core.errors.MonitorError: the table 'f1' has 2 labels and 1 value. Pass one value, or one row, ...
    """
    found = {}
    if given is not None and not isinstance(given, Mapping):
        raise MonitorError(f"tables is {given!r:.60}. Pass a dict of tables by name.")
    for name, table in (given or {}).items():
        if not isinstance(table, Mapping) or not {"labels", "values"} <= table.keys():
            raise MonitorError(f"the table {name!r} is {table!r:.60}. Pass {{'labels': […], 'values': […]}}.")
        labels, values = [str(label) for label in table["labels"]], list(table["values"])
        lengths = {len(values), *(len(row) for row in values if isinstance(row, list | tuple))}
        if lengths != {len(labels)}:
            both = f"{counted(len(labels), 'label')} and {counted(len(values), 'value')}"
            raise MonitorError(f"the table {name!r} has {both}. Pass one value, or one row, for each label.")
        found[str(name)] = {"labels": labels, "values": values}
        if table.get("mode") is not None:
            one_of(f"the mode of the table {name!r}", table["mode"], ("min", "max"))
            found[str(name)]["mode"] = table["mode"]
    return found

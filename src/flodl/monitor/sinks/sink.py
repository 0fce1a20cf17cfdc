"""The sink protocol, and the conversion of events to named numbers for trackers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TextIO

from flodl.core.files import expand_user

from ..events import Event


class Sink(Protocol):
    """Receives the events of a run, one after the other, from one thread."""

    def write(self, event: Event) -> None:
        """Write one event."""

    def close(self) -> None:
        """Write remaining data and close files and connections."""


class Numbers(NamedTuple):
    """Values at one position on an axis ("epoch", "step" or "resources")."""

    axis: str
    position: int
    values: dict[str, float]


def numbers_of(event: Event, *, started_s: float = 0.0) -> Numbers | None:
    """Return the numbers of an event under the names that trackers group by, or None if it has none.

    Epoch metrics keep their names, with dots replaced by slashes. Step metrics get the prefix `step/`, and
    hardware readings get `resources/`, over the seconds since `started_s`, so that no line mixes two axes.
    Epochs count from 1.

    >>> numbers_of(Event("epoch", {"epoch": 0, "metrics": {"encoder.loss": 0.5}, "duration_s": 2.0}))
    Numbers(axis='epoch', position=1, values={'encoder/loss': 0.5, 'epoch/duration_s': 2.0})
    >>> numbers_of(Event("metrics", {"epoch": 0, "step": 7, "metrics": {"loss": 0.5}}))
    Numbers(axis='step', position=7, values={'step/loss': 0.5})
    """
    data = event.data
    if event.kind == "epoch":
        values = _tracker_names(data.get("metrics", {}))
        if _is_number(data.get("duration_s")):
            values["epoch/duration_s"] = float(data["duration_s"])
        return Numbers("epoch", int(data["epoch"]) + 1, values)
    if event.kind == "metrics":
        return Numbers("step", int(data["step"]), _tracker_names(data["metrics"], "step/"))
    if event.kind == "resources":
        return Numbers(
            "resources", max(int(event.time_s - started_s), 0), _tracker_names(_flatten(data), "resources/")
        )
    return None


def settings_of(event: Event) -> dict[str, Any]:
    """Return the settings of a run from its start event, as path → value.

    >>> settings_of(Event("run_start", {"config": [{"path": "lr", "value": 0.1, "origin": "fdl.yml:3"}]}))
    {'lr': 0.1}
    """
    config = event.data.get("config") or []
    if isinstance(config, Mapping):
        return dict(config)
    return {str(item["path"]): item.get("value") for item in config}


def open_to_append(path: str | os.PathLike[str]) -> TextIO:
    """Open a text file for appending; terminate a last line that a crash truncated.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "run.jsonl"
    ...     _ = path.write_text('{"complete": 1}\\n{"truncated')
    ...     open_to_append(path).close()
    ...     path.read_text()
    '{"complete": 1}\\n{"truncated\\n'
    """
    path = expand_user(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")
    return open(path, "a", encoding="utf-8", errors="backslashreplace", newline="")


def _tracker_names(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    return {
        prefix + name.replace(".", "/"): float(value) for name, value in metrics.items() if _is_number(value)
    }


def _flatten(data: Mapping[str, Any]) -> dict[str, Any]:
    flat = {key: value for key, value in data.items() if _is_number(value)}
    for gpu in data.get("gpus", ()):
        flat |= {f"gpu{gpu['device']}.{key}": value for key, value in gpu.items() if key != "device"}
    return flat


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

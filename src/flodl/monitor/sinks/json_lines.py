"""Write every event as a line of JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping
from typing import Any

from flodl.core.usage.calls import MonitorCallError, explain_creation

from .. import validation
from ..events import Event
from .sink import open_to_append


@explain_creation(MonitorCallError, example="Write JsonLines('run.jsonl', kinds=['epoch']).")
class JsonLines:
    """Append each event to a file as one line of strict JSON.

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = tempfile.TemporaryDirectory()
    >>> sink = JsonLines(Path(folder.name) / "run.jsonl", kinds=["epoch"])
    >>> sink.write(Event("epoch", {"epoch": 0, "metrics": {"loss": math.nan}}, time_s=1.5))
    >>> sink.close()
    >>> print((Path(folder.name) / "run.jsonl").read_text(), end="")
    {"kind": "epoch", "time_s": 1.5, "rank": 0, "epoch": 0, "metrics": {"loss": "nan"}}
    >>> folder.cleanup()
    """

    def __init__(self, path: str | os.PathLike[str], *, kinds: Collection[str] | None = None) -> None:
        self._kinds = validation.kinds(kinds)
        self._file = open_to_append(validation.file(path))

    def write(self, event: Event) -> None:
        """Append an event; it survives a later crash of the process."""
        if self._kinds is not None and event.kind not in self._kinds:
            return
        record = {"kind": event.kind, "time_s": event.time_s, "rank": event.rank, **event.data}
        self._file.write(json.dumps(_strict(record), ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _strict(value: Any) -> Any:
    """Convert a value for JSON: names for NaN and infinities, text for unknown types."""
    if isinstance(value, Mapping):
        return {str(key): _strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)

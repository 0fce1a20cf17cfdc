"""The run log: one JSON line for everything that happens, from which reports and timelines are drawn."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

Record = dict[str, Any]


class RunLog:
    """Writes records to a file, and passes them to a callback. `t_ms` counts from the start of the run."""

    def __init__(self, path: Path | None = None, on_event: Callable[[Record], object] | None = None) -> None:
        self._start_s = time.monotonic()
        self._on_event = on_event
        self._file: TextIO | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")

    def write(self, kind: str, **fields: Any) -> None:
        if self._file is None and self._on_event is None:
            return
        record = self._record(kind, fields)
        if self._file is not None:
            self._file.write(json.dumps(record, default=str) + "\n")
            self._file.flush()
        if self._on_event is not None:
            self._on_event(record)

    def pass_on(self, kind: str, **fields: Any) -> None:
        """Pass a record to the callback only: it is frequent, and not worth a line of the file."""
        if self._on_event is not None:
            self._on_event(self._record(kind, fields))

    def _record(self, kind: str, fields: Record) -> Record:
        return {"t_ms": round(1000.0 * (time.monotonic() - self._start_s), 3), "kind": kind, **fields}

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read_log(path: Path) -> list[Record]:
    """Return the records of a run log; a last line that was cut off is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records

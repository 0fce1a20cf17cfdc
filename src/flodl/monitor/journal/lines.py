"""One event as one line of JSON, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flodl.monitor.events import Event

from .shapes import fitting

FILE = "journal.jsonl"
# JSON has no NaN and no infinity: in the journal their names stand in their place, so that nothing is lost.
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Entry(NamedTuple):
    """An event with its number in the journal; numbers rise and are never used twice."""

    id: int
    event: Event


def encode(entry: Entry) -> bytes:
    """Write an entry as a line of strict JSON.

    >>> encode(Entry(7, Event("epoch", {"epoch": 0, "metrics": {"loss": math.nan}}, time_s=1.5)))
    b'{"id":7,"kind":"epoch","time_s":1.5,"rank":0,"data":{"epoch":0,"metrics":{"loss":"nan"}}}\\n'
    """
    event = entry.event
    record = {
        "id": entry.id,
        "kind": event.kind,
        "time_s": event.time_s,
        "rank": event.rank,
        "data": event.data,
    }
    line = _quick(record)
    # A number that is not finite would have become a null without a word.
    return (_careful(record) if line is None or b"null" in line else line) + b"\n"


def dumps(value: Any) -> bytes:
    """Write data as strict JSON for whoever reads it: a number that is not finite is null.

    >>> dumps({"loss": math.inf, "path": Path("runs")})
    b'{"loss":null,"path":"runs"}'
    """
    return _quick(value) or _careful(value, names=False)


def decode(line: bytes) -> Entry | None:
    """Read a line; one that is damaged or cut short gives nothing.

    >>> decode(b'{"id":7,"kind":"alert","time_s":1.5,"data":{"message":"hot"}}')
    Entry(id=7, event=Event(kind='alert', data={'message': 'hot'}, time_s=1.5, rank=0))
    >>> decode(b'{"id":7,"kind":"al')
    """
    try:
        record = _loads(line)
        data = fitting(record["kind"], record["data"])
        time_s = float(record["time_s"])
        if data is None or not math.isfinite(time_s):
            return None
        if "metrics" in data:
            data["metrics"] = _numbers(data["metrics"])
        return Entry(int(record["id"]), Event(record["kind"], data, time_s, int(record.get("rank", 0))))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None


def whole_lines(path: Path, offset: int = 0) -> Iterator[tuple[bytes, int]]:
    """Give each whole line of a file from a byte on, with the byte at which it begins."""
    with open(path, "rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return  # still being written, or cut short by a crash
            yield line, offset
            offset += len(line)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Read numbers, also those that JSON could not hold, by their names; what is no number is left out.

    >>> _numbers({"loss": "nan", "accuracy": 0.5, "note": "warm"})
    {'loss': nan, 'accuracy': 0.5}
    """
    found = {name: value for name, value in metrics.items() if type(value) is float}
    if len(found) < len(metrics):
        read = {
            name: _NOT_FINITE.get(value, value) if type(value) is str else value
            for name, value in metrics.items()
        }
        found = {name: value for name, value in read.items() if isinstance(value, int | float)}
    return found


def plain(value: Any, *, names: bool = True) -> Any:
    """Make anything fit for strict JSON: names (or None) for what is not finite, text for what is not data.

    >>> plain({1: [math.inf, (2, None)], "path": Path("runs")})
    {'1': ['inf', [2, None]], 'path': 'runs'}
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value) if names else None
    if isinstance(value, Mapping):
        return {str(key): plain(item, names=names) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, names=names) for item in value]
    return plain(_as_data(value), names=names)


def _as_data(value: Any) -> Any:
    # Arrays and tensors know how to become lists; they are read here, off the training thread.
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _careful(value: Any, *, names: bool = True) -> bytes:
    # Escapes only: a name may hold half a surrogate pair, which has no UTF-8.
    return json.dumps(plain(value, names=names), separators=(",", ":"), allow_nan=False).encode()


def _quick(value: Any) -> bytes | None:
    """Write data with the faster encoder; nothing where there is none, or where the value is not for it."""
    if _ENCODER is None:
        return None
    try:
        line: bytes = _ENCODER.encode(value)
    except (MsgspecError, ValueError, TypeError, OverflowError):
        return None
    return line


def _loads(line: bytes) -> Any:
    if _DECODER is not None:
        try:
            return _DECODER.decode(line)
        except (MsgspecError, UnicodeDecodeError):
            pass
    return json.loads(line)


try:
    from msgspec import MsgspecError
    from msgspec.json import Decoder, Encoder
except ImportError:
    # Training alone does without it: the standard library writes the same lines, more slowly.
    _ENCODER = _DECODER = None
else:
    # Ten times as fast as the standard library, on a thread that shares its interpreter with the training.
    _ENCODER, _DECODER = Encoder(enc_hook=_as_data), Decoder()

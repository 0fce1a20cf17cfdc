"""One event as one line of JSON, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from flodl.monitor.events import Event

FILE = "journal.jsonl"
# JSON has no NaN and no infinity: their names travel in their place.
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
    return dumps(record) + b"\n"


def dumps(value: Any) -> bytes:
    """Write data as strict JSON; what JSON cannot hold travels as its name or as text.

    >>> dumps({"loss": math.inf, "epoch": None})
    b'{"loss":"inf","epoch":null}'
    """
    try:
        text = _ENCODER.encode(value)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError):
        return _careful(value)
    # A number that is not finite would have become a null without a word.
    return _careful(value) if b"null" in text else text


def decode(line: bytes) -> Entry | None:
    """Read a line; one that is damaged or cut short gives nothing.

    >>> decode(b'{"id":7,"kind":"alert","time_s":1.5,"data":{"message":"hot"}}')
    Entry(id=7, event=Event(kind='alert', data={'message': 'hot'}, time_s=1.5, rank=0))
    >>> decode(b'{"id":7,"kind":"al')
    """
    try:
        record = _loads(line)
        data = record["data"]
        if not isinstance(data, dict):
            return None
        metrics = data.get("metrics")
        if isinstance(metrics, dict):
            data["metrics"] = {name: number(value) for name, value in metrics.items()}
        event = Event(record["kind"], data, float(record["time_s"]), int(record.get("rank", 0)))
        return Entry(int(record["id"]), event)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
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


def number(value: Any) -> Any:
    """Read a number that JSON could not hold from its name.

    >>> number("nan"), number(0.5)
    (nan, 0.5)
    """
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def plain(value: Any) -> Any:
    """Make anything fit for strict JSON: names for what is not finite, text for what is not data.

    >>> plain({1: [math.inf, (2, None)], "path": Path("runs")})
    {'1': ['inf', [2, None]], 'path': 'runs'}
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return plain(_as_data(value))


def _as_data(value: Any) -> Any:
    # Arrays and tensors know how to become lists; they are read here, off the training thread.
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _careful(value: Any) -> bytes:
    # Escapes only: a name may hold half a surrogate pair, which has no UTF-8.
    return json.dumps(plain(value), separators=(",", ":"), allow_nan=False).encode()


def _loads(line: bytes) -> Any:
    try:
        return _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return json.loads(line)


# Ten times as fast as the standard library, on a thread that shares its interpreter with the training.
_ENCODER = msgspec.json.Encoder(enc_hook=_as_data)
_DECODER = msgspec.json.Decoder()

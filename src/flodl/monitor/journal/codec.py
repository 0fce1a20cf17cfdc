"""Encode one event as one line of JSON, and decode it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from ..events import Event, Kind
from .schema import valid_fields

FILE = "journal.jsonl"
# JSON has no NaN and no infinity: the journal stores their names, so that nothing is lost.
# Longer lines are damaged: reading one must not exhaust memory.
MAX_LINE_BYTES = 1 << 24
# The tables of the index and JavaScript store numbers as doubles, which are exact up to here.
MAX_ID = 2**53 - 1
_MAX_RANK = 2**31 - 1
_MAX_TIME_S = 1e11
_MAX_DEPTH = 64
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Entry(NamedTuple):
    """An event with its number in the journal; numbers increase and are never reused."""

    id: int
    event: Event


def encode(entry: Entry) -> bytes:
    """Encode an entry as a line of strict JSON.

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
    line = _encode_fast(record)
    # The fast encoder silently replaces numbers that are not finite by null.
    return (_encode_strict(record) if line is None or b"null" in line else line) + b"\n"


def dumps(value: Any) -> bytes:
    """Encode data as strict JSON for other programs: a number that is not finite becomes null.

    >>> from pathlib import Path
    >>> dumps({"loss": math.inf, "path": Path("runs")})
    b'{"loss":null,"path":"runs"}'
    """
    return _encode_fast(value) or _encode_strict(value, names=False)


def decode(line: bytes) -> Entry | None:
    """Decode a line, or return None if it is damaged or truncated.

    >>> decode(b'{"id":7,"kind":"alert","time_s":1.5,"data":{"message":"hot"}}')
    Entry(id=7, event=Event(kind='alert', data={'message': 'hot'}, time_s=1.5, rank=0))
    >>> decode(b'{"id":7,"kind":"al')
    """
    try:
        record = _loads(line)
        id, kind, time_s, rank = record["id"], record["kind"], record["time_s"], record.get("rank", 0)
        if type(id) is not int or not 0 < id <= MAX_ID or type(kind) is not str:
            return None
        if type(rank) is not int or not 0 <= rank <= _MAX_RANK:
            return None
        if type(time_s) not in (int, float) or not abs(time_s) <= _MAX_TIME_S:
            return None
        data = valid_fields(kind, record["data"])
        if data is None or _is_nested_too_deep(line, data):
            return None
        if "metrics" in data:
            data["metrics"] = _to_numbers(data["metrics"])
        return Entry(id, Event(cast(Kind, kind), data, float(time_s), rank))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError, MemoryError):
        return None


def _is_nested_too_deep(line: bytes, value: Any) -> bool:
    """Return whether data is nested deeper than the functions that read it can follow."""
    if line.count(b"{") + line.count(b"[") <= _MAX_DEPTH:
        return False
    containers = [value]
    for _ in range(_MAX_DEPTH - 1):
        containers = [
            item
            for outer in containers
            for item in (outer.values() if type(outer) is dict else outer)
            if type(item) in (dict, list)
        ]
        if not containers:
            return False
    return any(containers)


def _to_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers, including the named ones that JSON cannot represent, and drop everything else.

    >>> _to_numbers({"loss": "nan", "accuracy": 0.5, "note": "warm"})
    {'loss': nan, 'accuracy': 0.5}
    """
    found = {name: value for name, value in metrics.items() if type(value) is float}
    if len(found) < len(metrics):
        read: dict[str, Any] = {
            name: _NON_FINITE.get(value, value) if type(value) is str else value
            for name, value in metrics.items()
        }
        found = {name: value for name, value in read.items() if _is_number(value)}
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= MAX_ID)


def to_plain(value: Any, *, names: bool = True) -> Any:
    """Convert any value for strict JSON: names (or None) for non-finite numbers, text for unknown types.

    >>> from pathlib import Path
    >>> to_plain({1: [math.inf, (2, None)], "path": Path("runs")})
    {'1': ['inf', [2, None]], 'path': 'runs'}
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value) if names else None
    if isinstance(value, Mapping):
        return {str(key): to_plain(item, names=names) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(item, names=names) for item in value]
    return to_plain(_as_data(value), names=names)


def _as_data(value: Any) -> Any:
    # Arrays and tensors convert to lists; this reads them off the training thread.
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _encode_strict(value: Any, *, names: bool = True) -> bytes:
    # ASCII only: a name may contain a lone surrogate, which UTF-8 cannot encode.
    return json.dumps(to_plain(value, names=names), separators=(",", ":"), allow_nan=False).encode()


def _encode_fast(value: Any) -> bytes | None:
    """Encode with msgspec; return None if it is not installed or cannot encode the value."""
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
    # Optional: the standard library writes the same lines, more slowly.
    _ENCODER = _DECODER = None
else:
    # Ten times as fast as the standard library, on a thread that competes with training for the GIL.
    _ENCODER, _DECODER = Encoder(enc_hook=_as_data), Decoder()

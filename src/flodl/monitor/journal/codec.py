"""Encode one event as one line of JSON, and decode it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..events import Event
from .schema import valid_fields

FILE = "journal.jsonl"
# JSON has no NaN and no infinity: the journal stores their names, so that nothing is lost.
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
        data = valid_fields(record["kind"], record["data"])
        time_s = float(record["time_s"])
        if data is None or not math.isfinite(time_s):
            return None
        if "metrics" in data:
            data["metrics"] = _to_numbers(data["metrics"])
        return Entry(int(record["id"]), Event(record["kind"], data, time_s, int(record.get("rank", 0))))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None


def complete_lines(path: Path, offset: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield each complete line of a file from a byte offset on, with the offset at which it starts."""
    with open(path, "rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return  # still being written, or truncated by a crash
            yield line, offset
            offset += len(line)


def _to_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers, including the named ones that JSON cannot represent, and drop everything else.

    >>> _to_numbers({"loss": "nan", "accuracy": 0.5, "note": "warm"})
    {'loss': nan, 'accuracy': 0.5}
    """
    found = {name: value for name, value in metrics.items() if type(value) is float}
    if len(found) < len(metrics):
        read = {
            name: _NON_FINITE.get(value, value) if type(value) is str else value
            for name, value in metrics.items()
        }
        found = {name: value for name, value in read.items() if isinstance(value, int | float)}
    return found


def to_plain(value: Any, *, names: bool = True) -> Any:
    """Convert any value for strict JSON: names (or None) for non-finite numbers, text for unknown types.

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

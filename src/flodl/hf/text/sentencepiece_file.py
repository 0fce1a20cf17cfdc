"""Reading a SentencePiece model, a protobuf message, without the sentencepiece library."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flodl.core import HFError
from flodl.core.files import read_limited

MAX_BYTES = 1 << 28

UNIGRAM = 1
BPE = 2

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class Piece:
    """A piece of the vocabulary."""

    text: str
    score: float
    kind: int

    @property
    def is_control(self) -> bool:
        """Whether the piece never occurs in texts."""
        return self.kind == _CONTROL

    @property
    def is_user_defined(self) -> bool:
        """Whether the piece is always kept whole."""
        return self.kind == _USER_DEFINED


@dataclass(frozen=True)
class SentencePieceModel:
    """The parts of a SentencePiece model that determine how a text is split."""

    pieces: tuple[Piece, ...]
    algorithm: int
    unk_id: int
    charsmap: bytes


def read_model(path: Path) -> SentencePieceModel:
    """Read a SentencePiece model, or raise an error that names the file."""
    try:
        return _parse(read_limited(path, max_bytes=MAX_BYTES))
    except OSError as error:
        raise HFError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, IndexError, struct.error) as error:
        raise HFError(
            f"{path} is not a SentencePiece model: {error}. The file is damaged: download it again."
        ) from None


def _parse(data: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    algorithm, unk_id, charsmap = UNIGRAM, 0, b""
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_piece(_as_bytes(value)))
        elif number == 2:
            for inner, setting in _fields(_as_bytes(value)):
                if inner == 3 and isinstance(setting, int):
                    algorithm = setting
                elif inner == 40 and isinstance(setting, int):
                    unk_id = setting
        elif number == 3:
            for inner, setting in _fields(_as_bytes(value)):
                if inner == 2:
                    charsmap = _as_bytes(setting)
    if not pieces:
        raise ValueError("it contains no pieces")
    if not 0 <= unk_id < len(pieces):
        raise ValueError(f"the unknown token has the id {unk_id}, but there are {len(pieces)} pieces")
    return SentencePieceModel(tuple(pieces), algorithm, unk_id, charsmap)


def _piece(data: bytes) -> Piece:
    text, score, kind = "", 0.0, _NORMAL
    for number, value in _fields(data):
        if number == 1:
            text = _as_bytes(value).decode("utf-8")
        elif number == 2:
            score = struct.unpack("<f", _as_bytes(value))[0]
        elif number == 3 and isinstance(value, int):
            kind = value
    if score != score:
        raise ValueError(f"the score of the piece {text!r} is NaN")
    return Piece(text, score, kind)


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a field has the wrong type")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Return the number and value of each field of a message; numbers of fixed size are bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = _varint(data, at)
            yield key >> 3, number
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"a field has the unknown type {kind}")
        if at + size > len(data):
            raise ValueError("it ends in the middle of a field")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    result = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("it ends in the middle of a number")
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
    raise ValueError("a number is longer than 64 bits")

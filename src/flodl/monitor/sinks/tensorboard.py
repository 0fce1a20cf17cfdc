"""Write TensorBoard event files without TensorBoard.

A file is a sequence of records: a length, a protocol buffer and two checksums. The few fields that scalars
and texts need are encoded here, which avoids a large dependency.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import Any

from flodl.core.usage.calls import MonitorCallError, explain_creation

from .. import validation
from .sink import Numbers
from .tracker import Tracker


@explain_creation(MonitorCallError, example="Write TensorBoard('board').")
class TensorBoard(Tracker):
    """Write scalars and texts to `folder`; view them with `tensorboard --logdir folder`."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        folder = validation.folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard finds files by "tfevents" in their name, and sorts them by the time.
        name = f"events.out.tfevents.{time.time_ns() // 1000:016d}.{socket.gethostname()}.{os.getpid()}"
        self._file = open(folder / name, "xb")  # noqa: SIM115
        self._num_alerts = 0
        self._settings: dict[str, Any] = {}
        self._num_tables = 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _open(self, name: str, settings: dict[str, Any], time_s: float) -> None:
        self._append(_double(1, time_s) + _text(3, "brain.Event:2"))
        self._configure(settings)

    def _configure(self, settings: dict[str, Any]) -> None:
        if not settings:
            return
        self._settings |= settings
        rows = [f"| {_cell(path)} | {_cell(value)} |" for path, value in self._settings.items()]
        table = "\n".join(["| setting | value |", "|-|-|", *rows])
        # TensorBoard shows the text with the highest step.
        content = _int(2, self._num_tables) + _bytes(5, _text_summary("settings", table))
        self._append(_double(1, time.time()) + content)
        self._num_tables += 1

    def _log(self, numbers: Numbers, time_s: float) -> None:
        values = b"".join(_scalar(name, value) for name, value in numbers.values.items())
        self._append(_double(1, time_s) + _int(2, numbers.position) + _bytes(5, values))

    def _warn(self, message: str, level: str) -> None:
        summary = _text_summary("alerts", f"{level}: {message}")
        self._append(_double(1, time.time()) + _int(2, self._num_alerts) + _bytes(5, summary))
        self._num_alerts += 1

    def _end(self, status: str) -> None:
        """Do nothing: event files have no status."""

    def _append(self, event: bytes) -> None:
        self._file.write(_record(event))
        self._file.flush()


def _scalar(tag: str, value: float) -> bytes:
    return _bytes(1, _text(1, tag) + b"\x15" + struct.pack("<f", value))


def _text_summary(tag: str, text: str) -> bytes:
    # A tensor of one string (type 7, no dimensions), marked for the text plugin.
    tensor = _int(1, 7) + _bytes(2, b"") + _bytes(8, text.encode("utf-8", "backslashreplace"))
    metadata = _bytes(1, _text(1, "text"))
    return _bytes(1, _text(1, f"{tag}/text_summary") + _bytes(8, tensor) + _bytes(9, metadata))


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode("utf-8", "backslashreplace"))


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + _checksum(length) + content + _checksum(content)


def _checksum(content: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    # Masked as in TFRecord, because the content may itself contain checksums.
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _table() -> tuple[int, ...]:
    table = []
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ (0x82F63B78 if entry & 1 else 0)
        table.append(entry)
    return tuple(table)


_TABLE = _table()

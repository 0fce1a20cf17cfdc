"""Read the lines of a journal one by one, and skip the damaged ones.

Entries are numbered from 1 without gaps, so a wrong number gives a damaged line away. A number that was used
before is wrong. A number that is too high is wrong unless the skipped lines are damaged themselves, or the
next line continues from it: a full disk may have cost the entries in between. On the last line, a number that
is far too high is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .codec import MAX_LINE_BYTES, Entry, decode

_MAX_LAST_GAP = 1000
_NUM_SHOWN = 5
_MAX_DECODED_BYTES = 20_000_000


class Line(NamedTuple):
    """A complete line: its entry, or None if it is damaged or empty, and where it starts and ends."""

    entry: Entry | None
    offset: int
    end: int
    is_blank: bool = False

    @property
    def is_damaged(self) -> bool:
        """Whether the line contains something that cannot be used."""
        return self.entry is None and not self.is_blank


def read_lines(
    path: Path, offset: int = 0, *, last_id: int = 0, wait_for_next: bool = False
) -> Iterator[Line]:
    """Yield the complete lines of a journal from a byte offset on, after the entry `last_id`.

    If the number of the last line jumps, only the next line can tell whether it is damaged. With
    `wait_for_next`, it is not yielded before that.
    """
    num_damaged = 0  # directly before the current line
    held: list[Line] = []  # a line whose number jumps, and the damaged lines after it
    for content, start, end in complete_lines(path, offset):
        entry = None if content is None else decode(content)
        line = Line(entry, start, end, is_blank=content is not None and not content.strip())
        if held and entry is None:
            held.append(line)
            continue
        if held:
            jumped = held[0].entry
            assert entry is not None
            assert jumped is not None
            if entry.id > jumped.id:
                last_id, num_damaged = jumped.id, len(held) - 1
            else:
                held[0] = held[0]._replace(entry=None)
                num_damaged += len(held)
            yield from held
            held = []
        if entry is None:
            num_damaged += line.is_damaged
        elif entry.id <= last_id:
            line = line._replace(entry=None)
            num_damaged += 1
        elif entry.id - last_id - 1 > num_damaged:
            held = [line]
            continue
        else:
            last_id, num_damaged = entry.id, 0
        yield line
    if held and not wait_for_next:
        jumped = held[0].entry
        assert jumped is not None
        if jumped.id - last_id > _MAX_LAST_GAP:
            held[0] = held[0]._replace(entry=None)
        yield from held


def complete_lines(path: Path, offset: int = 0) -> Iterator[tuple[bytes | None, int, int]]:
    """Yield each complete line of a file from a byte offset on, with its start and its end.

    The content of a line that is too long for a journal is None.
    """
    with open(path, "rb") as file:
        file.seek(offset)
        while content := file.readline(MAX_LINE_BYTES + 1):
            end, is_too_long = offset + len(content), len(content) > MAX_LINE_BYTES
            while not content.endswith(b"\n"):
                content = file.readline(MAX_LINE_BYTES)
                if not content:
                    return  # still being written, or truncated by a crash
                end += len(content)
            yield (None if is_too_long else content), offset, end
            offset = end


def damaged_lines(path: Path) -> list[int]:
    """Return where the damaged lines of a journal start.

    In a large journal, the lines up to the first one that looks damaged are not decoded, to save time.
    """
    offset, last_id = 0, 0
    if path.stat().st_size > _MAX_DECODED_BYTES:
        for content, _, end in complete_lines(path):
            is_next = content is not None and content.startswith(b'{"id":%d,' % (last_id + 1))
            if content is None or not is_next or not content.endswith(b"}\n"):
                break
            offset, last_id = end, last_id + 1
    return [line.offset for line in read_lines(path, offset, last_id=last_id) if line.is_damaged]


def describe_damage(path: Path, offsets: list[int]) -> str:
    """Describe the damaged lines that start at these offsets.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "journal.jsonl"
    ...     _ = path.write_text("one\\ntwo\\nthree\\n")
    ...     describe_damage(path, [4]), describe_damage(path, [0, 8])
    ('1 damaged line (line 2)', '2 damaged lines (lines 1, 3)')
    """
    numbers, num_lines, position = [], 1, 0
    with open(path, "rb") as file:
        for offset in offsets[:_NUM_SHOWN]:
            while position < offset:
                chunk = file.read(min(offset - position, 1 << 20))
                if not chunk:
                    break
                num_lines += chunk.count(b"\n")
                position += len(chunk)
            numbers.append(str(num_lines))
    more = ", …" if len(offsets) > _NUM_SHOWN else ""
    if len(offsets) == 1:
        return f"1 damaged line (line {numbers[0]})"
    return f"{len(offsets)} damaged lines (lines {', '.join(numbers)}{more})"

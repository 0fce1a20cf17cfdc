"""The positions of lines in the index: found by kind, without NumPy."""

import struct

from flodl.monitor.events import KINDS
from flodl.monitor.journal.line_positions import LinePosition, LinePositions


def record(id, kind, *, code=None):
    return struct.pack("<4q", id, 100 * id, 100, KINDS.index(kind) if code is None else code)


def test_lines_are_found_by_kind_in_their_order():
    content = b"".join(record(at, kind) for at, kind in enumerate(KINDS * 2, start=1))
    found = LinePositions(content).of({"epoch", "ranks"})
    assert [KINDS[position.kind] for position in found] == ["epoch", "ranks"] * 2
    assert found[0] == LinePosition(2, 200, 100, KINDS.index("epoch"))
    assert len(LinePositions(content).all()) == 2 * len(KINDS)
    assert LinePositions(content).of({"unknown"}) == LinePositions(content).of(()) == []


def test_a_line_of_an_unknown_kind_is_not_taken_for_another():
    content = record(1, "", code=-1) + record(2, "", code=256 + KINDS.index("epoch")) + record(3, "epoch")
    assert [position.id for position in LinePositions(content).of({"epoch"})] == [3]


def test_an_incomplete_record_and_a_missing_file_are_ignored(tmp_path):
    assert [
        each.id for each in LinePositions(record(1, "epoch") + record(2, "epoch")[:-1]).of({"epoch"})
    ] == [1]
    assert LinePositions.read(tmp_path / "lines.bin").all() == []

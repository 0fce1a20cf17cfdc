"""`summary`: the layers of a model with shapes, parameters, FLOPs and times."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from flodl.core import PathError, paths
from flodl.core.formats import format_count

from .profile import format_share, format_timing


@dataclass(frozen=True)
class LayerRow:
    """One module: what it is, its shapes, and its parameters, FLOPs and time, with those of modules inside.

    `flops` counts a multiplication with an addition as two, in matmuls, convolutions and attention; other
    operations count as zero. `seconds` are those of all `calls` in one forward.
    """

    path: str
    what: str
    input_shape: str
    output_shape: str
    parameters: int
    trainable: int
    flops: int
    seconds: float
    calls: int

    @property
    def depth(self) -> int:
        """The number of modules that contain this one, besides the model."""
        return self.path.count(".")


@dataclass(frozen=True)
class Summary:
    """The modules of a model in the order of their definition, down to a depth, and the totals.

    >>> row = LayerRow("head", "Linear", "8 × 4", "8 × 2", 10, 10, 128, 1e-5, 1)
    >>> print(Summary("Sequential", (row,), 10, 10, 40, 128, 2e-5, "cpu"))
    Sequential on cpu
      path  module  input  output  parameters  FLOPs   time
      head  Linear  8 × 4   8 × 2          10    128  10.0 µs  50.0 %
    10 parameters (10 trainable, 40 bytes), 128 FLOPs, 20.0 µs in a forward
    """

    what: str
    rows: tuple[LayerRow, ...]
    parameters: int
    trainable: int
    num_bytes: int
    flops: int
    seconds: float
    device: str

    def __getitem__(self, path: str) -> LayerRow:
        """Return the row of a module by its path."""
        row = self._by_path.get(path)
        if row is None:
            hint = paths.suggestion(path, self._by_path, known_as="rows")
            raise PathError(f"the summary has no row {path!r}. {hint}")
        return row

    @cached_property
    def _by_path(self) -> dict[str, LayerRow]:
        return {row.path: row for row in self.rows}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        table: list[tuple[str, ...]] = [
            ("path", "module", "input", "output", "parameters", "FLOPs", "time", "")
        ]
        table += [self._cells(row) for row in self.rows]
        widths = [max(map(len, column)) for column in zip(*table)]
        lines = [f"{self.what} on {self.device}"]
        for cells in table:
            left = [cell.ljust(width) for cell, width in zip(cells[:2], widths)]
            right = [cell.rjust(width) for cell, width in zip(cells[2:], widths[2:])]
            lines.append("  " + "  ".join([*left, *right]).rstrip())
        lines.append(
            f"{format_count(self.parameters)} parameters ({format_count(self.trainable)} trainable, "
            f"{_format_bytes(self.num_bytes)}), {format_flops(self.flops)}, "
            f"{format_timing(self.seconds)} in a forward"
        )
        return "\n".join(lines)

    def _cells(self, row: LayerRow) -> tuple[str, ...]:
        name = "  " * row.depth + row.path.rpartition(".")[2]
        what = row.what + (f" ×{row.calls}" if row.calls > 1 else "")
        parameters = format_count(row.parameters) if row.parameters else "–"
        if row.parameters and not row.trainable:
            parameters += " frozen"
        if not row.calls:
            return name, what, "", "", parameters, "", "not run", ""
        flops = format_count(row.flops) if row.flops else "–"
        share = row.seconds / self.seconds if self.seconds > 0 else 0.0
        timing = format_timing(row.seconds)
        return name, what, row.input_shape, row.output_shape, parameters, flops, timing, format_share(share)


def format_flops(flops: int) -> str:
    """Format a number of floating-point operations.

    >>> [format_flops(n) for n in (12, 4_560_000, 7_800_000_000_000)]
    ['12 FLOPs', '4.6 MFLOPs', '7.8 TFLOPs']
    """
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if flops >= size:
            return f"{flops / size:.1f} {unit}FLOPs"
    return f"{flops} FLOPs"


def _format_bytes(count: int) -> str:
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"

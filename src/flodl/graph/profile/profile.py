"""`Profile`: the time of each node in a call, including nested graphs and the parts of control nodes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from flodl.core import PathError, paths
from flodl.core.formats import format_count

_BAR = 20


@dataclass(frozen=True)
class Row:
    """The time of one node: `seconds` over all its calls, and its `share` of the whole forward.

    A row below another one (`loop_1.body` below `loop_1`) is a part of it. `names` are other paths to the
    same node, through tags and labels.
    """

    path: str
    key: str
    kind: str
    what: str
    seconds: float
    calls: int
    share: float
    names: tuple[str, ...] = field(default=(), repr=False)

    @property
    def depth(self) -> int:
        """The number of rows that contain this one."""
        return self.path.count(".")


@dataclass(frozen=True)
class Profile:
    """The times of one forward, in execution order.

    `total_s` is the time of the whole call. All times are means over the `num_runs` runs of the faster half.

    >>> linear = Row("linear_1", "linear_1", "call", "Linear", 0.0003, 1, 0.75, ("hidden",))
    >>> profile = Profile(0.0004, "cpu", 3, (linear,))
    >>> profile.seconds("hidden"), profile["linear_1"].share
    (0.0003, 0.75)
    >>> print(profile)
    Forward: 400 µs on cpu, 1 node, mean of 3 runs
      linear_1  Linear  300 µs  75.0 %  ███████████████
    """

    total_s: float
    device: str
    num_runs: int
    rows: tuple[Row, ...]

    def __getitem__(self, path: str) -> Row:
        """Return the row of a node by its path, or by a path through tags and labels."""
        row = self._by_name.get(path)
        if row is None:
            hint = paths.suggestion(path, self._by_name, known_as="rows")
            raise PathError(f"the profile has no row {path!r}. {hint}")
        return row

    def __contains__(self, path: object) -> bool:
        return path in self._by_name

    def seconds(self, path: str) -> float:
        """Return the time of a node over all its calls."""
        return self[path].seconds

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data for JSON."""
        rows = [{**asdict(row), "names": list(row.names)} for row in self.rows]
        return {"total_s": self.total_s, "device": self.device, "num_runs": self.num_runs, "rows": rows}

    def __str__(self) -> str:
        count = sum(row.depth == 0 for row in self.rows)
        heading = (
            f"Forward: {format_timing(self.total_s)} on {self.device}, {count} node{'s' * (count != 1)}, "
            f"mean of {self.num_runs} run{'s' * (self.num_runs != 1)}"
        )
        names = ["  " * row.depth + row.key for row in self.rows]
        whats = [row.what + (f" ×{format_count(row.calls)}" if row.calls > 1 else "") for row in self.rows]
        times = [format_timing(row.seconds) if row.calls else "not run" for row in self.rows]
        widths = [max(map(len, column), default=0) for column in (names, whats, times)]
        lines = [heading]
        for row, name, what, timing in zip(self.rows, names, whats, times):
            cells = f"  {name:<{widths[0]}}  {what:<{widths[1]}}  {timing:>{widths[2]}}"
            lines.append(f"{cells}  {format_share(row.share):>6}  {_bar(row.share)}".rstrip())
        return "\n".join(lines)

    @cached_property
    def _by_name(self) -> dict[str, Row]:
        found = {row.path: row for row in self.rows}
        for row in self.rows:
            for name in row.names:
                found.setdefault(name, row)
        return found


def format_timing(seconds: float) -> str:
    """Format a short time with three digits.

    >>> [format_timing(s) for s in (0.0, 2.5e-7, 1.234e-5, 0.000123, 0.0123, 1.5, 120)]
    ['0 µs', '0.25 µs', '12.3 µs', '123 µs', '12.3 ms', '1.50 s', '120 s']
    """
    if seconds <= 0:
        return "0 µs"
    value, unit = next(
        (seconds * scale, unit)
        for scale, unit in ((1e6, "µs"), (1e3, "ms"), (1, "s"))
        if seconds * scale < 999.5 or unit == "s"
    )
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def format_share(share: float) -> str:
    """Format a share as a percentage.

    >>> [format_share(share) for share in (0.0, 0.0001, 0.1234, 1.0)]
    ['0 %', '<0.1 %', '12.3 %', '100 %']
    """
    if share <= 0 or share >= 0.9995:
        return "0 %" if share <= 0 else "100 %"
    return f"{share * 100:.1f} %" if share >= 0.0005 else "<0.1 %"


def _bar(share: float) -> str:
    eighths = round(share * _BAR * 8)
    rest: str = ("", *"▏▎▍▌▋▊▉")[eighths % 8]
    return "█" * (eighths // 8) + rest

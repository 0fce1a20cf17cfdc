"""Maps: apply a body to the rows of a batch, or to slices of the features."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from flodl.core import ShapeError, StateError
from flodl.core.formats import a_type

from ..plan.error_path import details_of_part, prepend_path
from ..plan.exporting import is_exporting
from ..plan.shapes import differ
from .control import Control, Target, carried_tag

MapMode = Literal["each", "slices"]


class Map(Control):
    """Apply `body` to each row, or to each of `count` slices of the last dimension.

    With `batched`, the body is called once on all rows; otherwise once per row, and the results
    are concatenated.
    """

    kind = "map"

    def __init__(self, body: Target, *, mode: MapMode, count: int = 1, batched: bool = False) -> None:
        super().__init__()
        self.body = body
        self.mode = mode
        self.count = count
        self.batched = batched
        if not batched and (tag := carried_tag(body)) is not None:
            raise StateError(
                f"the body of the map carries {tag!r} from call to call. It is called once for each row, so "
                "a row would continue the state of another. Use map(body, batched=True), which carries one "
                "value for each row. For the steps of a sequence, call the graph in your own loop."
            )

    def part_names(self) -> tuple[str, ...]:
        return ("body",)

    def describe(self) -> str:
        what = "each" if self.mode == "each" else f"{self.count} slices"
        return what + (", batched" if self.batched else "")

    def forward(self, stream: Any) -> Any:
        if not isinstance(stream, Tensor) or stream.dim() == 0:
            got = "a scalar" if isinstance(stream, Tensor) else f"{a_type(stream)}"
            raise ShapeError(f"map got {got}. It maps the rows of a tensor.")
        return self._rows(stream) if self.mode == "each" else self._slices(stream)

    def _rows(self, rows: Tensor) -> Tensor:
        if self.batched or rows.shape[0] == 0:
            return _check_rows(self._run(rows), rows.shape[0])
        count: object = rows.shape[0]
        if isinstance(count, torch.SymInt) and is_exporting():
            raise ShapeError(
                "torch.export cannot export this map with a dynamic number of rows: its body is called once "
                "for each row, and an exported program has a fixed number of calls. Pass batched=True to "
                "map, which calls the body once on all rows, or export with a static batch (Dim.STATIC)."
            )
        mapped = [_check_rows(self._run(row), 1) for row in torch.split(rows, 1)]
        try:
            return torch.cat(mapped)
        except RuntimeError as error:
            raise _unequal_rows(mapped) from error

    def _run(self, rows: Tensor) -> Any:
        try:
            return self.body(rows)
        except Exception as error:
            prepend_path(error, "body", details_of_part(error, self.body, rows))
            raise

    def _slices(self, stream: Tensor) -> Tensor:
        width = stream.shape[-1]
        if stream.dim() < 2 or width % self.count:
            raise ShapeError(
                f"a stream of shape {tuple(stream.shape)} cannot be split into {self.count} equal slices. "
                f"It needs at least 2 dimensions, the last one divisible by {self.count}."
            )
        lead = stream.shape[:-1]
        mapped = self._rows(stream.reshape(math.prod(lead) * self.count, width // self.count))
        return mapped.reshape(*lead, self.count * math.prod(mapped.shape[1:]))


def _check_rows(mapped: Any, num_rows: int) -> Tensor:
    """Return what the body returned, if it has as many rows as the body's input."""
    if isinstance(mapped, Tensor) and mapped.dim() > 0 and not differ(mapped.shape[:1], (num_rows,)):
        return mapped
    got = f"shape {tuple(mapped.shape)}" if isinstance(mapped, Tensor) else f"{a_type(mapped)}"
    rows = "1 row" if num_rows == 1 else f"{num_rows} rows"
    raise ShapeError(
        f"the body of a map returned {got} for {rows}. Return a tensor whose first dimension is {num_rows}: "
        "one row for each row.",
        path="body",
    )


def _unequal_rows(mapped: list[Tensor]) -> ShapeError:
    first = mapped[0]
    number, other = next(
        ((number, row) for number, row in enumerate(mapped) if row.shape != first.shape), (0, first)
    )
    return ShapeError(
        f"the body of a map returned shape {tuple(first.shape)} for row 0 and {tuple(other.shape)} for row "
        f"{number}. All rows need the same shape.",
        path="body",
    )

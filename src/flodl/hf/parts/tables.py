"""Numbers that are computed from the config and never trained or saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from torch import Tensor, nn


class ComputedTable(nn.Module):
    """A module with a computed `table`, which follows the model to its device and keeps its numbers and type.

    A model in bfloat16 still needs exact frequencies, and `to_empty` must not lose them.
    """

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self._exact = table
        self.register_buffer("table", table, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.table = self._exact.to(self.table.device)
        return self

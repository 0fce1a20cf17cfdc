"""How long products of matrices take on this device, measured once for each shape.

Imported only when something is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...device.torch_flags import matmul_precision

# A matrix as it lies in memory: its sides, and whether they are exchanged.
MatrixLayout = tuple[int, int, bool]
# What the device moves in a microsecond from memory that was just written; on the careful side.
BYTES_PER_US = 2.5e6
_RUNS, _RUNS_US = 8, 400.0
_ROUNDS = 5
# Long enough that everything is queued before the first run begins.
_WAIT_CYCLES = 400_000


class MatmulTimes:
    """Microseconds of the device; what else runs on it meanwhile is kept out by taking the shortest."""

    def __init__(self) -> None:
        self._known: dict[Any, float] = {}

    def product(self, left: MatrixLayout, right: MatrixLayout) -> float:
        """Give the time of one product."""

        def prepare() -> Callable[[], object]:
            x, y = _matrix(left), _matrix(right)
            return lambda: torch.mm(x, y)

        return self._taken(("product", left, right), prepare)

    def cut(self, left: MatrixLayout, right: MatrixLayout, parts: int) -> float:
        """Give the time of a product whose inner side is cut in parts, without their sum."""

        def prepare() -> Callable[[], object]:
            x, y = _matrix(left), _matrix(right)
            rows, inner, columns = x.shape[0], x.shape[1] // parts, y.shape[1]
            x, y = x.view(rows, parts, inner).permute(1, 0, 2), y.view(parts, inner, columns)
            return lambda: torch.bmm(x, y)

        return self._taken(("cut", left, right, parts), prepare)

    def batch(
        self,
        left: MatrixLayout,
        right: MatrixLayout,
        count: int,
        *,
        shared: bool,
        copied: Sequence[MatrixLayout],
    ) -> float:
        """Give the time of a batch of products, and of copying the matrices that lie elsewhere so far."""

        def prepare() -> Callable[[], object]:
            lefts, rights = _batch(left, 1 if shared else count), _batch(right, count)
            loose = [[_matrix((*form[:2], False)) for _ in range(count)] for form in copied]

            def run() -> None:
                for matrices in loose:
                    torch.cat(matrices)
                torch.bmm(lefts.expand(count, -1, -1), rights)

            return run

        return self._taken(("batch", left, right, count, shared, tuple(copied)), prepare)

    def _taken(self, key: Any, prepare: Callable[[], Callable[[], object]]) -> float:
        """Give what is known or measured; where there is no room to measure, it takes forever."""
        key = torch.cuda.current_device(), matmul_precision(), *key
        if key not in self._known:
            from torch.utils._python_dispatch import _disable_current_modes

            with _disable_current_modes(), torch.no_grad():
                try:
                    self._known[key] = _shortest(prepare())
                except torch.OutOfMemoryError:
                    self._known[key] = math.inf
        return self._known[key]


_zeros = partial(torch.zeros, dtype=torch.float32, device="cuda")


def _matrix(form: MatrixLayout) -> Tensor:
    rows, columns, exchanged = form
    made = _zeros((columns, rows) if exchanged else (rows, columns))
    return made.t() if exchanged else made


def _batch(form: MatrixLayout, count: int) -> Tensor:
    rows, columns, exchanged = form
    made = _zeros((count, columns, rows) if exchanged else (count, rows, columns))
    return made.transpose(1, 2) if exchanged else made


def _shortest(run: Callable[[], object]) -> float:
    """Time some runs in a row, several times, and give the shortest time of one."""
    run()
    taken = [_time(run, 1)]
    runs = max(1, min(_RUNS, int(_RUNS_US / taken[0])))
    return min([*taken, *(_time(run, runs) for _ in range(_ROUNDS))])


def _time(run: Callable[[], object], runs: int) -> float:
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(_WAIT_CYCLES)  # type: ignore[no-untyped-call]
    started.record()
    for _ in range(runs):
        run()
    ended.record()
    ended.synchronize()
    return float(started.elapsed_time(ended)) * 1e3 / runs

"""The time of matmuls on this device, measured once for each shape.

Imported only to compile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ....device.torch_flags import matmul_precision

# The rows and columns of a matrix, and whether it is transposed in memory.
MatrixLayout = tuple[int, int, bool]
# A conservative estimate of what the device reads in a microsecond from recently written memory.
BYTES_PER_US = 2.5e6
_RUNS, _RUNS_US = 8, 400.0
_ROUNDS = 5
# Long enough to queue all runs before the first one starts.
_WAIT_CYCLES = 400_000


class MatmulTimes:
    """Measured microseconds; taking the minimum excludes other work on the device."""

    def __init__(self) -> None:
        self._known: dict[Any, float] = {}

    def matmul(self, left: MatrixLayout, right: MatrixLayout) -> float:
        """Return the time of one matmul."""

        def prepare() -> Callable[[], object]:
            x, y = _matrix(left), _matrix(right)
            return lambda: torch.mm(x, y)

        return self._time(("matmul", left, right), prepare)

    def split_k(self, left: MatrixLayout, right: MatrixLayout, parts: int) -> float:
        """Return the time of a split-K matmul, without the sum of its parts."""

        def prepare() -> Callable[[], object]:
            x, y = _matrix(left), _matrix(right)
            rows, inner, columns = x.shape[0], x.shape[1] // parts, y.shape[1]
            x, y = x.view(rows, parts, inner).permute(1, 0, 2), y.view(parts, inner, columns)
            return lambda: torch.bmm(x, y)

        return self._time(("split_k", left, right, parts), prepare)

    def batch(
        self,
        left: MatrixLayout,
        right: MatrixLayout,
        count: int,
        *,
        shared: bool,
        copied: Sequence[MatrixLayout],
    ) -> float:
        """Return the time of a batched matmul, and of copying matrices into the batch."""

        def prepare() -> Callable[[], object]:
            lefts, rights = _batch(left, 1 if shared else count), _batch(right, count)
            unbatched = [[_matrix((*form[:2], False)) for _ in range(count)] for form in copied]

            def run() -> None:
                for matrices in unbatched:
                    torch.cat(matrices)
                torch.bmm(lefts.expand(count, -1, -1), rights)

            return run

        return self._time(("batch", left, right, count, shared, tuple(copied)), prepare)

    def _time(self, key: Any, prepare: Callable[[], Callable[[], object]]) -> float:
        """Return the known or measured time; infinity if there is no memory to measure."""
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
    rows, columns, transposed = form
    zeros = _zeros((columns, rows) if transposed else (rows, columns))
    return zeros.t() if transposed else zeros


def _batch(form: MatrixLayout, count: int) -> Tensor:
    rows, columns, transposed = form
    zeros = _zeros((count, columns, rows) if transposed else (count, rows, columns))
    return zeros.transpose(1, 2) if transposed else zeros


def _shortest(run: Callable[[], object]) -> float:
    """Time several series of runs, and return the shortest time of one run."""
    run()
    times = [_time(run, 1)]
    runs = max(1, min(_RUNS, int(_RUNS_US / times[0])))
    return min([*times, *(_time(run, runs) for _ in range(_ROUNDS))])


def _time(run: Callable[[], object], runs: int) -> float:
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(_WAIT_CYCLES)  # type: ignore[no-untyped-call]
    started.record()
    for _ in range(runs):
        run()
    ended.record()
    ended.synchronize()
    return float(started.elapsed_time(ended)) * 1e3 / runs

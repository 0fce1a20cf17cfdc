"""Matmuls are rewritten only if that was measured faster, and compute the same."""

from __future__ import annotations

import collections
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flodl.engine.compile.passes.matmuls import batching as passes
from flodl.engine.compile.passes.matmuls.batching import BatchAndSplitMatmuls

from ..rewritten_programs import rewritten

aten = torch.ops.aten

pytestmark = pytest.mark.usefixtures("passes_on_cpu")


class Times:
    """Times of an imaginary device: the same for every matmul, whatever its size."""

    def __init__(self, *, matmul: float = 10.0, split_k: float = 100.0, batch: float = 100.0) -> None:
        self._matmul, self._split_k, self._batch = matmul, split_k, batch
        self.cuts: list[int] = []

    def matmul(self, left, right) -> float:
        return self._matmul

    def split_k(self, left, right, parts: int) -> float:
        self.cuts.append(parts)
        return self._split_k + parts

    def batch(self, left, right, count: int, *, shared: bool, copied) -> float:
        return self._batch + len(copied)


def changed(
    program: Callable[..., object], times: Times, *inputs: Tensor
) -> tuple[collections.Counter, object]:
    """Trace a program, rewrite and check its graph, and return its calls and its results."""
    traced = rewritten(program, BatchAndSplitMatmuls(times), *inputs)  # type: ignore[arg-type]
    calls = collections.Counter(node.target for node in traced.graph.nodes if node.op == "call_function")
    return calls, traced(*inputs)


def drawn_alike(program: Callable[..., object], times: Times, *inputs: Tensor) -> collections.Counter:
    """Check that a rewritten program draws the same random numbers, and return its calls."""
    torch.manual_seed(0)
    expected = program(*inputs)
    torch.manual_seed(0)
    calls, given = changed(program, times, *inputs)
    torch.testing.assert_close(given, expected)
    return calls


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("transposed", [False, True])
def test_a_matmul_is_split_if_that_is_faster(transposed: bool) -> None:
    def program(x, w):
        return torch.mm(x, w.t() if transposed else w).relu()

    inputs = draw(3, 128), draw(5, 128) if transposed else draw(128, 5)
    calls, given = changed(program, Times(split_k=2.0), *inputs)
    assert (calls[aten.mm.default], calls[aten.bmm.default], calls[aten.add.Tensor]) == (0, 1, 1)
    torch.testing.assert_close(given, program(*inputs))


def test_a_matmul_that_is_fast_enough_is_left_alone() -> None:
    calls, _ = changed(lambda x, w: torch.mm(x, w).relu(), Times(split_k=9.0), draw(3, 128), draw(128, 5))
    assert (calls[aten.mm.default], calls[aten.bmm.default]) == (1, 0)


def test_a_matmul_whose_parts_would_fill_the_memory_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x, w):
        return torch.mm(x, w).relu()

    monkeypatch.setattr(passes, "MAX_BYTES", 2 * 3 * 5 * 4)
    times = Times(split_k=2.0)
    calls, _ = changed(program, times, draw(3, 256), draw(256, 5))
    assert (calls[aten.bmm.default], times.cuts) == (1, [2])


@pytest.mark.parametrize(("taken", "is_cut"), [(176.0, True), (179.0, False)])
def test_a_long_matmul_is_split_for_a_smaller_gain(taken: float, is_cut: bool) -> None:
    """Its time is known within one percent; for 20 microseconds that would be noise."""
    times = Times(matmul=180.0, split_k=taken - 2)
    calls, _ = changed(lambda x, w: torch.mm(x, w).relu(), times, draw(3, 64), draw(64, 5))
    assert calls[aten.bmm.default] == is_cut
    times = Times(matmul=20.0, split_k=17.0)
    calls, _ = changed(lambda x, w: torch.mm(x, w).relu(), times, draw(3, 64), draw(64, 5))
    assert calls[aten.mm.default] == 1


def test_k_is_split_evenly_and_not_too_short() -> None:
    times = Times()
    changed(torch.mm, times, draw(3, 96), draw(96, 5))
    assert times.cuts == [2]


def test_matmuls_with_one_matrix_become_one_matmul() -> None:
    def program(x, w):
        return [torch.mm(x[:, turn], aten.permute.default(w, [1, 0])).relu() for turn in range(4)]

    inputs = draw(3, 4, 16), draw(5, 16)
    calls, given = changed(program, Times(), *inputs)
    assert (calls[aten.mm.default], calls[aten.cat.default]) == (1, 1)
    torch.testing.assert_close(given, program(*inputs))


def test_dependent_matmuls_are_not_merged() -> None:
    def program(x, w):
        for _ in range(3):
            x = torch.mm(x, w).relu()
        return x

    inputs = draw(4, 16), draw(16, 16)
    calls, given = changed(program, Times(), *inputs)
    assert calls[aten.mm.default] == 3
    torch.testing.assert_close(given, program(*inputs))


@pytest.mark.parametrize("shared", [False, True])
def test_matmuls_of_one_shape_become_a_batch(shared: bool) -> None:
    def program(x, *weights):
        lefts = [x if shared else x + turn for turn in range(len(weights))]
        return [
            torch.mm(left, aten.permute.default(weight, [1, 0])).relu()
            for left, weight in zip(lefts, weights)
        ]

    inputs = draw(3, 16), *(draw(5, 16) + turn for turn in range(3))
    calls, given = changed(program, Times(batch=20.0), *inputs)
    assert (calls[aten.mm.default], calls[aten.bmm.default]) == (0, 1)
    assert calls[aten.expand.default] == shared
    torch.testing.assert_close(given, program(*inputs))


def test_successive_weight_gradients_become_a_batch() -> None:
    def program(g, a, b, w):
        """Like a backward: each gradient depends on the one before, those of the weights do not."""
        first = torch.mm(g.t(), a)
        g = torch.mm(g, w).relu()
        return first, torch.mm(g.t(), b)

    inputs = draw(3, 5), draw(3, 5), draw(1, 3, 5)[0], draw(5, 5)
    calls, given = changed(program, Times(batch=5.0), *inputs)
    assert (calls[aten.mm.default], calls[aten.bmm.default]) == (1, 1)
    torch.testing.assert_close(given, program(*inputs))


def test_bias_gradients_are_summed_together_if_the_weight_gradients_are_a_batch() -> None:
    def program(g, h, a, b):
        weights = [torch.mm(aten.permute.default(grad, [1, 0]), x) for grad, x in ((g, a), (h, b))]
        return *weights, aten.sum.dim_IntList(g, [0], True), aten.sum.dim_IntList(h, [0])

    inputs = draw(3, 5), draw(1, 3, 5)[0], draw(3, 4), draw(1, 3, 4)[0]
    calls, given = changed(program, Times(batch=5.0), *inputs)
    assert (calls[aten.bmm.default], calls[aten.sum.dim_IntList]) == (1, 1)
    torch.testing.assert_close(given, program(*inputs))


def test_a_sum_that_another_gradient_depends_on_is_not_merged_with_it() -> None:
    def program(g, u, a, b):
        """Like `first(x) + norm(second(x))`: the norm's backward needs the sum of its gradient."""
        total = aten.sum.dim_IntList(g, [0])
        h = u * total
        weights = [torch.mm(aten.permute.default(grad, [1, 0]), x) for grad, x in ((g, a), (h, b))]
        return *weights, total, aten.sum.dim_IntList(h, [0])

    inputs = draw(3, 5), draw(1, 3, 5)[0], draw(3, 4), draw(1, 3, 4)[0]
    calls, given = changed(program, Times(batch=5.0), *inputs)
    assert (calls[aten.bmm.default], calls[aten.sum.dim_IntList]) == (1, 2)
    torch.testing.assert_close(given, program(*inputs))


def test_random_numbers_do_not_move_behind_merged_sums() -> None:
    def program(g, h, a, b):
        g_side, h_side = (aten.permute.default(grad, [1, 0]) for grad in (g, h))
        total = aten.sum.dim_IntList(g, [0])
        noise = torch.rand_like(total), torch.rand(5)
        return torch.mm(g_side, a), torch.mm(h_side, b), *noise, aten.sum.dim_IntList(h, [0])

    inputs = draw(3, 5), draw(1, 3, 5)[0], draw(3, 4), draw(1, 3, 4)[0]
    calls = drawn_alike(program, Times(batch=5.0), *inputs)
    assert calls[aten.bmm.default] == 1


def test_only_independent_matmuls_become_a_batch() -> None:
    def program(x, entry, first, second, last):
        x = torch.mm(x, entry).relu()
        x = torch.mm(x, first).relu() + torch.mm(x, second).relu()
        return torch.mm(x, last)

    inputs = draw(3, 5), *(draw(5, 5) + turn for turn in range(4))
    calls, given = changed(program, Times(batch=5.0), *inputs)
    assert (calls[aten.mm.default], calls[aten.bmm.default]) == (2, 1)
    torch.testing.assert_close(given, program(*inputs))


def test_random_numbers_are_drawn_in_eager_order() -> None:
    def program(a, b, v, w):
        """The second matmul needs random numbers drawn after those that follow the first."""
        first = torch.mm(a, v).relu()
        first = first * torch.rand_like(first)
        return first, torch.mm(b * torch.rand_like(b), w)

    inputs = draw(3, 5), draw(1, 3, 5)[0], draw(5, 5), draw(1, 5, 5)[0]
    calls = drawn_alike(program, Times(batch=5.0), *inputs)
    assert calls[aten.mm.default] == 2


def test_matmuls_whose_inputs_are_ready_become_a_batch_despite_random_numbers() -> None:
    def program(x, v, w):
        return [torch.mm(x, weight) * torch.rand(3, 5) for weight in (v, w)]

    inputs = draw(3, 5), draw(5, 5), draw(1, 5, 5)[0]
    calls = drawn_alike(program, Times(batch=5.0), *inputs)
    assert calls[aten.bmm.default] == 1


def test_matmuls_of_other_shapes_and_dtypes_are_left_alone() -> None:
    def program(x, y, a, b):
        return torch.mm(x, y).sum() + torch.mm(a, b).sum()

    doubles = draw(3, 16).double(), draw(16, 5).double()
    calls, _ = changed(program, Times(batch=1.0, split_k=1.0), draw(3, 16), draw(16, 5), *doubles)
    assert calls[aten.mm.default] == 2

"""Products that are written in another way give the same numbers, and only where that was measured faster."""

from __future__ import annotations

import collections
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from flodl.engine.compile.passes import matmul as products
from flodl.engine.compile.passes.matmul import BatchAndSplitMatmuls

aten = torch.ops.aten

pytestmark = pytest.mark.usefixtures("on_a_cpu_too")


class Times:
    """What a device could say: every product takes so long, whatever its size."""

    def __init__(self, *, product: float = 10.0, cut: float = 100.0, batch: float = 100.0) -> None:
        self._product, self._cut, self._batch = product, cut, batch
        self.cuts: list[int] = []

    def product(self, left, right) -> float:
        return self._product

    def cut(self, left, right, parts: int) -> float:
        self.cuts.append(parts)
        return self._cut + parts

    def batch(self, left, right, count: int, *, shared: bool, copied) -> float:
        return self._batch + len(copied)


def changed(
    program: Callable[..., object], times: Times, *inputs: Tensor
) -> tuple[collections.Counter, object]:
    """Trace a program, change its graph, check that it is whole, and give its calls and what it computes."""
    traced = make_fx(program, tracing_mode="fake")(*inputs)
    BatchAndSplitMatmuls(times)(traced.graph)  # type: ignore[arg-type]
    traced.graph.lint()
    traced.recompile()
    calls = collections.Counter(node.target for node in traced.graph.nodes if node.op == "call_function")
    return calls, traced(*inputs)


def drawn_alike(program: Callable[..., object], times: Times, *inputs: Tensor) -> collections.Counter:
    """Check that a changed program draws the same random numbers, and give its calls."""
    torch.manual_seed(0)
    expected = program(*inputs)
    torch.manual_seed(0)
    calls, given = changed(program, times, *inputs)
    torch.testing.assert_close(given, expected)
    return calls


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_is_cut_where_that_is_faster(transposed: bool) -> None:
    def program(x, w):
        return torch.mm(x, w.t() if transposed else w).relu()

    inputs = draw(3, 128), draw(5, 128) if transposed else draw(128, 5)
    calls, given = changed(program, Times(cut=2.0), *inputs)
    assert (calls[aten.mm.default], calls[aten.bmm.default], calls[aten.add.Tensor]) == (0, 1, 1)
    torch.testing.assert_close(given, program(*inputs))


def test_a_product_that_is_fast_enough_stays_as_it_is() -> None:
    calls, _ = changed(lambda x, w: torch.mm(x, w).relu(), Times(cut=9.0), draw(3, 128), draw(128, 5))
    assert (calls[aten.mm.default], calls[aten.bmm.default]) == (1, 0)


def test_a_product_whose_parts_would_fill_the_memory_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x, w):
        return torch.mm(x, w).relu()

    monkeypatch.setattr(products, "_MOST_BYTES", 2 * 3 * 5 * 4)
    times = Times(cut=2.0)
    calls, _ = changed(program, times, draw(3, 256), draw(256, 5))
    assert (calls[aten.bmm.default], times.cuts) == (1, [2])


@pytest.mark.parametrize(("taken", "is_cut"), [(176.0, True), (179.0, False)])
def test_a_long_product_is_cut_for_less(taken: float, is_cut: bool) -> None:
    """Its time is known to a hundredth; of one of 20 microseconds that would be noise."""
    times = Times(product=180.0, cut=taken - 2)
    calls, _ = changed(lambda x, w: torch.mm(x, w).relu(), times, draw(3, 64), draw(64, 5))
    assert calls[aten.bmm.default] == is_cut
    times = Times(product=20.0, cut=17.0)
    calls, _ = changed(lambda x, w: torch.mm(x, w).relu(), times, draw(3, 64), draw(64, 5))
    assert calls[aten.mm.default] == 1


def test_an_inner_side_is_cut_evenly_and_not_too_short() -> None:
    times = Times()
    changed(torch.mm, times, draw(3, 96), draw(96, 5))
    assert times.cuts == [2]


def test_rows_that_meet_one_matrix_become_one_product() -> None:
    def program(x, w):
        return [torch.mm(x[:, turn], aten.permute.default(w, [1, 0])).relu() for turn in range(4)]

    inputs = draw(3, 4, 16), draw(5, 16)
    calls, given = changed(program, Times(), *inputs)
    assert (calls[aten.mm.default], calls[aten.cat.default]) == (1, 1)
    torch.testing.assert_close(given, program(*inputs))


def test_turns_that_wait_for_each_other_stay_apart() -> None:
    def program(x, w):
        for _ in range(3):
            x = torch.mm(x, w).relu()
        return x

    inputs = draw(4, 16), draw(16, 16)
    calls, given = changed(program, Times(), *inputs)
    assert calls[aten.mm.default] == 3
    torch.testing.assert_close(given, program(*inputs))


@pytest.mark.parametrize("shared", [False, True])
def test_products_of_one_shape_become_a_batch(shared: bool) -> None:
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


def test_gradients_of_weights_that_come_one_after_the_other_become_a_batch() -> None:
    def program(g, a, b, w):
        """As a backward has it: each gradient is made from the one before, the weights' are not."""
        first = torch.mm(g.t(), a)
        g = torch.mm(g, w).relu()
        return first, torch.mm(g.t(), b)

    inputs = draw(3, 5), draw(3, 5), draw(1, 3, 5)[0], draw(5, 5)
    calls, given = changed(program, Times(batch=5.0), *inputs)
    assert (calls[aten.mm.default], calls[aten.bmm.default]) == (1, 1)
    torch.testing.assert_close(given, program(*inputs))


def test_gradients_of_biases_are_summed_up_together_where_those_of_weights_are_a_batch() -> None:
    def program(g, h, a, b):
        weights = [torch.mm(aten.permute.default(grad, [1, 0]), x) for grad, x in ((g, a), (h, b))]
        return *weights, aten.sum.dim_IntList(g, [0], True), aten.sum.dim_IntList(h, [0])

    inputs = draw(3, 5), draw(1, 3, 5)[0], draw(3, 4), draw(1, 3, 4)[0]
    calls, given = changed(program, Times(batch=5.0), *inputs)
    assert (calls[aten.bmm.default], calls[aten.sum.dim_IntList]) == (1, 1)
    torch.testing.assert_close(given, program(*inputs))


def test_a_sum_that_another_gradient_is_made_from_is_not_summed_up_with_it() -> None:
    def program(g, u, a, b):
        """As `first(x) + norm(second(x))` has it: the norm's backward needs the sum over its gradient."""
        total = aten.sum.dim_IntList(g, [0])
        h = u * total
        weights = [torch.mm(aten.permute.default(grad, [1, 0]), x) for grad, x in ((g, a), (h, b))]
        return *weights, total, aten.sum.dim_IntList(h, [0])

    inputs = draw(3, 5), draw(1, 3, 5)[0], draw(3, 4), draw(1, 3, 4)[0]
    calls, given = changed(program, Times(batch=5.0), *inputs)
    assert (calls[aten.bmm.default], calls[aten.sum.dim_IntList]) == (1, 2)
    torch.testing.assert_close(given, program(*inputs))


def test_what_draws_random_numbers_does_not_wait_for_sums_of_others() -> None:
    def program(g, h, a, b):
        g_side, h_side = (aten.permute.default(grad, [1, 0]) for grad in (g, h))
        total = aten.sum.dim_IntList(g, [0])
        noise = torch.rand_like(total), torch.rand(5)
        return torch.mm(g_side, a), torch.mm(h_side, b), *noise, aten.sum.dim_IntList(h, [0])

    inputs = draw(3, 5), draw(1, 3, 5)[0], draw(3, 4), draw(1, 3, 4)[0]
    calls = drawn_alike(program, Times(batch=5.0), *inputs)
    assert calls[aten.bmm.default] == 1


def test_only_products_that_do_not_wait_for_each_other_become_a_batch() -> None:
    def program(x, entry, first, second, last):
        x = torch.mm(x, entry).relu()
        x = torch.mm(x, first).relu() + torch.mm(x, second).relu()
        return torch.mm(x, last)

    inputs = draw(3, 5), *(draw(5, 5) + turn for turn in range(4))
    calls, given = changed(program, Times(batch=5.0), *inputs)
    assert (calls[aten.mm.default], calls[aten.bmm.default]) == (2, 1)
    torch.testing.assert_close(given, program(*inputs))


def test_random_numbers_are_drawn_in_the_order_of_eager() -> None:
    def program(a, b, v, w):
        """The second product waits for random numbers that are drawn after those that follow the first."""
        first = torch.mm(a, v).relu()
        first = first * torch.rand_like(first)
        return first, torch.mm(b * torch.rand_like(b), w)

    inputs = draw(3, 5), draw(1, 3, 5)[0], draw(5, 5), draw(1, 5, 5)[0]
    calls = drawn_alike(program, Times(batch=5.0), *inputs)
    assert calls[aten.mm.default] == 2


def test_products_that_are_ready_become_a_batch_beside_random_numbers() -> None:
    def program(x, v, w):
        return [torch.mm(x, weight) * torch.rand(3, 5) for weight in (v, w)]

    inputs = draw(3, 5), draw(5, 5), draw(1, 5, 5)[0]
    calls = drawn_alike(program, Times(batch=5.0), *inputs)
    assert calls[aten.bmm.default] == 1


def test_products_of_other_shapes_and_formats_are_left_alone() -> None:
    def program(x, y, a, b):
        return torch.mm(x, y).sum() + torch.mm(a, b).sum()

    doubles = draw(3, 16).double(), draw(16, 5).double()
    calls, _ = changed(program, Times(batch=1.0, cut=1.0), draw(3, 16), draw(16, 5), *doubles)
    assert calls[aten.mm.default] == 2

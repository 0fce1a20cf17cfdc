"""A program that was rewritten for torch's compiler computes the same."""

from __future__ import annotations

import collections
import uuid
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import make_fx

from flodl.engine.compile.passes import pipeline as fusion

from .rewritten_programs import rewritten

aten = torch.ops.aten

pytestmark = pytest.mark.usefixtures("passes_on_cpu")


def changed(program: Callable[..., Tensor], change, *inputs: Tensor) -> tuple[collections.Counter, Tensor]:
    """Trace a program, rewrite and check its graph, and return its calls and its results."""
    traced = rewritten(program, change, *inputs)
    calls = collections.Counter(node.target for node in traced.graph.nodes if node.op == "call_function")
    for node in traced.graph.nodes:
        if node.op == "call_function":
            assert isinstance(node.meta["val"], Tensor)
    return calls, traced(*inputs)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_a_bias_is_added_after_the_matmul() -> None:
    def layer(b, x, w):
        return aten.addmm.default(b, x, w).relu()

    inputs = draw(5), draw(3, 4), draw(4, 5)
    calls, given = changed(layer, fusion.DecomposeAddmm(), *inputs)
    assert calls[aten.addmm.default] == 0
    assert (calls[aten.mm.default], calls[aten.add.Tensor]) == (1, 1)
    torch.testing.assert_close(given, layer(*inputs))


def test_an_addmm_with_factors_is_left_alone() -> None:
    calls, _ = changed(
        lambda b, x, w: aten.addmm.default(b, x, w, beta=2),
        fusion.DecomposeAddmm(),
        draw(5),
        draw(3, 4),
        draw(4, 5),
    )
    assert calls[aten.addmm.default] == 1


def test_other_dtypes_are_left_alone() -> None:
    calls, _ = changed(
        lambda b, x, w: aten.addmm.default(b, x, w),
        fusion.DecomposeAddmm(),
        draw(5).double(),
        draw(3, 4).double(),
        draw(4, 5).double(),
    )
    assert calls[aten.addmm.default] == 1


def test_a_large_addmm_is_left_alone() -> None:
    calls, _ = changed(
        lambda b, x, w: aten.addmm.default(b, x, w),
        fusion.DecomposeAddmm(16),
        draw(5),
        draw(3, 4),
        draw(4, 5),
    )
    assert calls[aten.addmm.default] == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_backward_saves_the_matmul_and_its_sum_with_the_bias_is_never_written() -> None:
    kept: list[set[object]] = []

    class Watched(fusion.DecomposeAddmm):
        def __call__(self, graph: Graph) -> None:
            super().__call__(graph)
            given = next(node for node in graph.nodes if node.op == "output").args[0]
            kept.append({node.target for node in given if node is not None})

        def uuid(self) -> object:
            return uuid.uuid4().bytes  # never found in a cache

    model = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.GELU(), torch.nn.Linear(40, 50))

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(model(x), y)

    options = fusion.inductor_options() | {"post_grad_custom_post_pass": Watched(0)}
    x, y = draw(30, 6), torch.arange(30)
    torch.compile(loss_of, dynamic=False, options=options)(x, y).backward()
    forward, _backward = kept
    assert aten.mm.default in forward
    assert not forward & {aten.add.Tensor, aten.addmm.default}
    fused = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    loss_of(x, y).backward()
    torch.testing.assert_close(fused, [parameter.grad for parameter in model.parameters()])


def test_the_gradient_of_a_weight_shared_by_a_loop_becomes_one_matmul() -> None:
    def gradient(x1, x2, x3, g1, g2, g3):
        """Like the backward of three iterations: a sum of transposed matmuls."""
        pairs = [(g1, x1), (g2, x2), (g3, x3)]
        products = [aten.mm.default(aten.permute.default(g, [1, 0]), x) for g, x in pairs]
        return aten.add.Tensor(aten.add.Tensor(products[0], products[1]), products[2])

    inputs = [draw(6 + turn, 4) for turn in range(3)] + [draw(6 + turn, 5) for turn in range(3)]
    calls, given = changed(gradient, fusion.MergeMatmulSums(), *inputs)
    assert (calls[aten.mm.default], calls[aten.add.Tensor]) == (1, 0)
    assert (calls[aten.cat.default], calls[aten.permute.default]) == (2, 1)
    torch.testing.assert_close(given, gradient(*inputs))


def test_terms_that_are_not_matmuls_are_added_afterwards() -> None:
    def program(a, b, c, d, e):
        total = aten.add.Tensor(aten.add.Tensor(aten.mm.default(a, b), e), aten.mm.default(c, d))
        return aten.add.Tensor(total, aten.mm.default(a + 1, b))

    inputs = draw(3, 4), draw(4, 5), draw(3, 6), draw(6, 5), draw(3, 5)
    calls, given = changed(program, fusion.MergeMatmulSums(), *inputs)
    assert (calls[aten.mm.default], calls[aten.cat.default]) == (1, 2)
    torch.testing.assert_close(given, program(*inputs))


def test_two_matmuls_with_weights_are_not_merged() -> None:
    def cell(x, h, w, v):
        """Like a recurrent cell: the sum of a matmul of its input and one of its state."""
        return aten.add.Tensor(
            aten.mm.default(x, aten.permute.default(w, [1, 0])),
            aten.mm.default(h, aten.permute.default(v, [1, 0])),
        )

    inputs = draw(3, 4), draw(3, 6), draw(5, 4), draw(5, 6)
    calls, given = changed(cell, fusion.MergeMatmulSums(), *inputs)
    assert (calls[aten.mm.default], calls[aten.cat.default]) == (2, 0)
    torch.testing.assert_close(given, cell(*inputs))


def test_a_matmul_with_other_readers_is_left_alone() -> None:
    def program(a, b, c, d):
        first, second = aten.mm.default(a, b), aten.mm.default(c, d)
        return aten.add.Tensor(first, second) * first

    inputs = draw(3, 4), draw(4, 5), draw(3, 6), draw(6, 5)
    calls, given = changed(program, fusion.MergeMatmulSums(), *inputs)
    assert calls[aten.mm.default] == 2
    torch.testing.assert_close(given, program(*inputs))


def test_a_sum_with_a_factor_is_left_alone() -> None:
    def program(a, b, c, d):
        return aten.add.Tensor(aten.mm.default(a, b), aten.mm.default(c, d), alpha=2)

    calls, _ = changed(program, fusion.MergeMatmulSums(), draw(3, 4), draw(4, 5), draw(3, 6), draw(6, 5))
    assert calls[aten.mm.default] == 2


def test_sums_that_broadcast_are_still_right() -> None:
    def program(a, b, c, d, row):
        return aten.add.Tensor(aten.add.Tensor(aten.mm.default(a, b), row), aten.mm.default(c, d))

    inputs = draw(3, 4), draw(4, 5), draw(3, 6), draw(6, 5), draw(5)
    _, given = changed(program, fusion.MergeMatmulSums(), *inputs)
    torch.testing.assert_close(given, program(*inputs))


def test_matmuls_of_different_shapes_that_broadcast_are_left_alone() -> None:
    def program(a, b, c, d):
        return aten.add.Tensor(aten.mm.default(a, b), aten.mm.default(c, d))

    inputs = draw(3, 4), draw(4, 5), draw(1, 6), draw(6, 5)
    _, given = changed(program, fusion.MergeMatmulSums(), *inputs)
    torch.testing.assert_close(given, program(*inputs))


def test_the_gradient_of_a_bias_shared_by_a_loop_becomes_one_sum() -> None:
    def gradient(*grads):
        sums = [aten.view.default(aten.sum.dim_IntList(grad, [0], True), [5]) for grad in grads[:2]]
        sums += [aten.sum.dim_IntList(grad, [0]) for grad in grads[2:]]
        return aten.add.Tensor(aten.add.Tensor(aten.add.Tensor(sums[0], sums[1]), sums[2]), sums[3])

    inputs = [draw(3 + turn, 5) for turn in range(4)]
    calls, given = changed(gradient, fusion.MergeRowSums(), *inputs)
    assert (calls[aten.sum.dim_IntList], calls[aten.cat.default], calls[aten.add.Tensor]) == (1, 1, 0)
    torch.testing.assert_close(given, gradient(*inputs))


def test_the_bias_sum_reuses_the_rows_concatenated_for_the_weight() -> None:
    def gradient(x1, x2, x3, g1, g2, g3):
        pairs = [(g1, x1), (g2, x2), (g3, x3)]
        sums = [aten.sum.dim_IntList(g, [0]) for g, _ in reversed(pairs)]
        bias = aten.add.Tensor(aten.add.Tensor(sums[0], sums[1]), sums[2])
        products = [aten.mm.default(aten.permute.default(g, [1, 0]), x) for g, x in pairs]
        return aten.add.Tensor(aten.add.Tensor(products[0], products[1]), products[2]), bias

    inputs = [draw(6 + turn, 4) for turn in range(3)] + [draw(6 + turn, 5) for turn in range(3)]
    both = fusion.PassSequence(fusion.MergeMatmulSums(), fusion.MergeRowSums())
    calls, given = changed(gradient, both, *inputs)
    assert (calls[aten.mm.default], calls[aten.sum.dim_IntList], calls[aten.cat.default]) == (1, 1, 2)
    torch.testing.assert_close(given, gradient(*inputs))


def test_row_sums_with_other_readers_are_left_alone() -> None:
    def program(a, b, c):
        sums = [aten.sum.dim_IntList(x, [0]) for x in (a, b, c)]
        return aten.add.Tensor(aten.add.Tensor(sums[0], sums[1]), sums[2]) * sums[0] * sums[1]

    inputs = draw(3, 5), draw(4, 5), draw(6, 5)
    calls, given = changed(program, fusion.MergeRowSums(), *inputs)
    assert calls[aten.sum.dim_IntList] == 3
    torch.testing.assert_close(given, program(*inputs))


def test_a_row_sum_added_to_itself_counts_twice() -> None:
    def program(a, b, c):
        """Like the gradient of a bias that a loop adds twice per iteration."""
        sums = [aten.sum.dim_IntList(x, [0]) for x in (a, b, c)]
        return aten.add.Tensor(aten.add.Tensor(aten.add.Tensor(sums[0], sums[0]), sums[1]), sums[2])

    inputs = draw(3, 5), draw(4, 5), draw(6, 5)
    _, given = changed(program, fusion.MergeRowSums(), *inputs)
    torch.testing.assert_close(given, program(*inputs))


def test_a_row_sum_is_recognized_behind_a_reshape() -> None:
    def gradient(*grads):
        sums = [aten.reshape.default(aten.sum.dim_IntList(grad, [0], True), [5]) for grad in grads]
        return aten.add.Tensor(aten.add.Tensor(sums[0], sums[1]), sums[2])

    inputs = [draw(3 + turn, 5) for turn in range(3)]
    traced = make_fx(gradient, tracing_mode="fake")(*inputs)
    for node in traced.graph.find_nodes(op="call_function", target=aten.view.default):
        node.target = aten.reshape.default
    fusion.MergeRowSums()(traced.graph)
    assert len(traced.graph.find_nodes(op="call_function", target=aten.sum.dim_IntList)) == 1
    traced.recompile()
    torch.testing.assert_close(traced(*inputs), gradient(*inputs))


def test_a_matmul_added_to_itself_is_computed_once() -> None:
    def program(a, b):
        product = aten.mm.default(a, b)
        return aten.add.Tensor(product, product)

    inputs = draw(3, 4), draw(4, 5)
    calls, given = changed(program, fusion.MergeMatmulSums(), *inputs)
    assert calls[aten.cat.default] == 0
    torch.testing.assert_close(given, program(*inputs))


def test_a_value_doubled_many_times_is_not_expanded() -> None:
    def program(x):
        for _ in range(40):
            x = aten.add.Tensor(x, x)
        return x

    for change in (fusion.MergeMatmulSums(), fusion.MergeRowSums()):
        calls, _ = changed(program, change, draw(3, 4))
        assert calls[aten.add.Tensor] == 40


def test_a_sum_deeper_than_the_recursion_limit_is_merged() -> None:
    def program(x):
        return aten.add.Tensor(aten.mm.default(x, x), aten.mm.default(x, x))

    graph = make_fx(program, tracing_mode="fake")(draw(2, 2)).graph
    total, output = graph.find_nodes(op="call_function", target=aten.add.Tensor)[0], graph.output_node()
    matmul = total.args[0]
    with graph.inserting_before(output):
        # Inserted by hand, because tracing 2,400 calls takes seconds.
        for _ in range(1200):
            term = graph.call_function(aten.mm.default, matmul.args)
            total = graph.call_function(aten.add.Tensor, (total, term))
            term.meta.update(matmul.meta)
            total.meta.update(matmul.meta)
    output.args = (total,)
    fusion.MergeMatmulSums()(graph)
    graph.lint()
    assert len(graph.find_nodes(op="call_function", target=aten.mm.default)) == 1


def test_sums_of_booleans_stay_boolean() -> None:
    def program(one, other, a, b, c, d):
        products = aten.add.Tensor(aten.mm.default(a, b), aten.mm.default(c, d))
        products = aten.add.Tensor(products, aten.mm.default(a + 1, b))
        return aten.add.Tensor(aten.add.Tensor(one, other), products)

    truths = torch.ones(3, 5, dtype=torch.bool), torch.ones(3, 5, dtype=torch.bool)
    inputs = *truths, draw(3, 4), draw(4, 5), draw(3, 6), draw(6, 5)
    calls, given = changed(program, fusion.MergeMatmulSums(), *inputs)
    assert calls[aten.mm.default] == 1
    torch.testing.assert_close(given, program(*inputs))


def test_each_pass_has_its_own_cache_key() -> None:
    assert fusion.DecomposeAddmm().uuid() == fusion.DecomposeAddmm().uuid()
    assert fusion.DecomposeAddmm().uuid() != fusion.MergeMatmulSums().uuid()
    assert "max_autotune_gemm" not in fusion.inductor_options()
    assert fusion.inductor_options(tune="gemm")["max_autotune_gemm"] is True
    assert fusion.inductor_options()["fallback_random"] is True

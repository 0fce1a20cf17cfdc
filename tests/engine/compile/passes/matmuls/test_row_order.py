"""Rows are multiplied in storage order if that saves a copy, and only then."""

from __future__ import annotations

import collections
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from flodl.engine.compile.passes.matmuls.row_order import MatmulInStorageOrder

from ..rewritten_programs import rewritten

aten = torch.ops.aten

pytestmark = pytest.mark.usefixtures("passes_on_cpu")
BATCH, LENGTH, WIDTH = 3, 5, 8


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).double()


def changed(program: Callable[..., object], *inputs: Tensor) -> torch.fx.GraphModule:
    """Trace a program, rewrite its graph, and check that it is valid and computes the same."""
    traced = rewritten(program, MatmulInStorageOrder(), *inputs)
    torch.testing.assert_close(traced(*inputs), program(*inputs))
    return traced


def calls(traced: torch.fx.GraphModule) -> collections.Counter:
    return collections.Counter(node.target for node in traced.graph.nodes)


def copies_before_products(traced: torch.fx.GraphModule) -> int:
    """Count the matmuls with an operand that is a copy in another order."""
    found = 0
    for product in traced.graph.find_nodes(op="call_function", target=aten.mm.default):
        for side in product.all_input_nodes:
            while side.target in (aten.view.default, aten.permute.default, aten._unsafe_view.default):
                side = side.args[0]
            found += side.target is aten.clone.default
    return found


def turned(x: Tensor) -> Tensor:
    """Transpose batch and positions, copy, and flatten them to rows."""
    return x.transpose(0, 1).contiguous().view(-1, x.shape[-1])


def turned_back(rows: Tensor) -> Tensor:
    return rows.view(LENGTH, BATCH, -1).transpose(0, 1)


X, W = draw(BATCH, LENGTH, WIDTH), draw(WIDTH, 6)


def test_the_result_of_permuted_rows_is_permuted_instead() -> None:
    traced = changed(lambda x, w: turned_back(torch.mm(turned(x), w)) + 1, X, W)
    assert copies_before_products(traced) == 0


def test_a_bias_is_still_added_to_every_row() -> None:
    traced = changed(lambda b, x, w: turned_back(torch.addmm(b, turned(x), w)).relu(), draw(6), X, W)
    (product,) = traced.graph.find_nodes(op="call_function", target=aten.addmm.default)
    assert product.args[1].args[0].args[0].op == "placeholder"


def test_a_bias_that_differs_by_row_keeps_the_copy() -> None:
    bias = draw(BATCH * LENGTH, 6)
    traced = changed(lambda b, x, w: torch.addmm(b, turned(x), w) + 1, bias, X, W)
    (product,) = traced.graph.find_nodes(op="call_function", target=aten.addmm.default)
    assert product.args[1].args[0].target is aten.clone.default


def test_a_matmul_read_by_another_matmul_is_left_alone() -> None:
    def program(x, w, v):
        return torch.mm(torch.mm(turned(x), w), v) + 1

    before = calls(make_fx(program, tracing_mode="fake")(X, W, draw(6, 4)))
    assert calls(changed(program, X, W, draw(6, 4))) == before


def test_weight_gradients_reduce_over_rows_in_storage_order() -> None:
    """Both operands are permuted in the same way."""

    def program(x, grad, w):
        rows, grads = turned(x + 1), turned(grad * 2)
        return torch.mm(grads.permute(1, 0), rows), grads.sum([0]), turned_back(torch.mm(grads, w)) + 1

    traced = changed(program, X, draw(BATCH, LENGTH, 4), draw(4, WIDTH))
    assert copies_before_products(traced) == 0
    (total,) = traced.graph.find_nodes(op="call_function", target=aten.sum.dim_IntList)
    assert total.args[0].args[0].args[0].target is aten.mul.Tensor


def test_elementwise_gradients_follow_the_row_order() -> None:
    """Gradients of queries, keys and values are concatenated in permuted order, but need not be."""

    def program(x, grad, w):
        packed = (grad * 2).permute(1, 2, 0, 3).contiguous().view(LENGTH * BATCH, -1)
        made = torch.mm(packed.permute(1, 0), turned(x + 1)), turned_back(torch.mm(packed, w)) + 1
        return (*made, packed.sum([0]))

    traced = changed(program, X, draw(3, LENGTH, BATCH, 4), draw(12, WIDTH))
    products = traced.graph.find_nodes(op="call_function", target=aten.mm.default)
    weights, inputs = sorted(products, key=lambda product: product.meta["val"].shape[0] != 12)
    # Both read one copy, in row order.
    assert weights.args[0].args[0] is inputs.args[0]
    assert weights.args[1].args[0].args[0].target is aten.add.Tensor


def test_gradients_with_other_readers_keep_their_order() -> None:
    def program(x, grad):
        packed = (grad * 2).permute(1, 2, 0, 3).contiguous().view(LENGTH * BATCH, -1)
        return torch.mm(packed.permute(1, 0), turned(x + 1)), packed.cumsum(0)

    inputs = X, draw(3, LENGTH, BATCH, 4)
    before = calls(make_fx(program, tracing_mode="fake")(*inputs))
    assert calls(changed(program, *inputs)) == before


def test_a_part_of_the_rows_is_not_taken_for_all_of_them() -> None:
    traced = changed(lambda x, w: torch.mm(turned(x[:, :4]), w) + 1, X, W)
    assert copies_before_products(traced) == 1


def viewed(x: Tensor) -> Tensor:
    """View a whole tensor in a way whose strides are not tracked."""
    return x.as_strided((BATCH, LENGTH, WIDTH), (LENGTH * WIDTH, WIDTH, 1))


@pytest.mark.parametrize("seen", [lambda x: x, viewed], ids=["itself", "a view"])
def test_a_mutated_input_keeps_its_copy(seen: Callable[[Tensor], Tensor]) -> None:
    def program(x, w):
        made = torch.mm(turned(seen(x)), w) + 1
        x.copy_(x * 2)
        return made

    traced = rewritten(program, MatmulInStorageOrder(), X.clone(), W)
    assert copies_before_products(traced) == 1


def test_a_chain_of_views_longer_than_the_recursion_limit_is_followed() -> None:
    traced = make_fx(lambda x, w: torch.mm(turned(x), w).t().relu(), tracing_mode="fake")(X, W)
    (matmul,) = traced.graph.find_nodes(op="call_function", target=aten.mm.default)
    (view,) = traced.graph.find_nodes(op="call_function", target=aten.t.default)
    relu = next(iter(view.users))
    chain = view
    with traced.graph.inserting_before(relu):
        # Inserted by hand, because tracing 1,200 calls takes ten seconds.
        for source in (matmul, view) * 600:
            chain = traced.graph.call_function(aten.t.default, (chain,))
            chain.meta.update(source.meta)
    relu.replace_input_with(view, chain)
    MatmulInStorageOrder()(traced.graph)
    traced.graph.lint()
    traced.recompile()
    torch.testing.assert_close(traced(X, W), torch.mm(turned(X), W).t().relu())


def test_inserted_nodes_keep_the_metadata_of_the_matmul() -> None:
    """A checkpoint requires that it is recomputed."""
    traced = make_fx(lambda x, w: turned_back(torch.mm(turned(x), w)) + 1, tracing_mode="fake")(X, W)
    (product,) = traced.graph.find_nodes(op="call_function", target=aten.mm.default)
    product.meta["recompute"] = product.args[0].meta["recompute"] = "told"
    before = set(traced.graph.nodes)
    MatmulInStorageOrder()(traced.graph)
    made = [node for node in traced.graph.nodes if node not in before]
    assert made
    assert all(node.meta["recompute"] == "told" for node in made)


def test_a_single_row_and_a_single_column_work() -> None:
    for shape in ((1, 1, WIDTH), (1, LENGTH, WIDTH), (BATCH, 1, WIDTH), (BATCH, LENGTH, 1)):
        changed(lambda x, w: torch.mm(turned(x), w) + 1, draw(*shape), draw(shape[-1], 6))

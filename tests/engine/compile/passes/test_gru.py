"""A decomposed GRU cell computes the same as torch's kernel, forward and backward."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from flodl.engine.compile.passes import gru as cells

aten = torch.ops.aten

pytestmark = pytest.mark.usefixtures("passes_on_cpu")
ROWS, WIDTH, HIDDEN = 3, 4, 5


def draw(*shape: int) -> Tensor:
    source = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=source, dtype=torch.float64).requires_grad_()


def parts(bias: bool) -> tuple[Tensor | None, ...]:
    biases = (draw(3 * HIDDEN), draw(1, 3 * HIDDEN)[0]) if bias else (None, None)
    return draw(ROWS, 3 * HIDDEN), draw(3 * HIDDEN, ROWS).t(), draw(ROWS, HIDDEN), *biases


def traced(*, bias: bool = True, dtype: torch.dtype = torch.float32) -> Graph:
    """Return the program that torch traces for a GRU cell on CUDA, and its backward."""
    graph, mode = Graph(), FakeTensorMode()

    def value(node: Node, like: Tensor | None) -> Node:
        node.meta["val"] = None if like is None else mode.from_tensor(like.detach().to(dtype))
        return node

    def taken(node: Node, likes: list[Tensor | None]) -> list[Node]:
        return [
            value(graph.call_function(operator.getitem, (node, at)), like) for at, like in enumerate(likes)
        ]

    given = parts(bias)
    names = ("of_input", "of_hidden", "hidden", "bias", "hidden_bias")
    inputs = [value(graph.placeholder(name), like) for name, like in zip(names, given)]
    grad = value(graph.placeholder("grad"), given[2])
    # Missing biases are left out.
    gates = [node for node, like in zip(inputs, given) if like is not None]
    cell = graph.call_function(aten._thnn_fused_gru_cell.default, tuple(gates))
    made, kept = taken(cell, [given[2], torch.empty(ROWS, 5 * HIDDEN)])
    backward = graph.call_function(aten._thnn_fused_gru_cell_backward.default, (grad, kept, bias))
    sums = list(given[3:]) if bias else []
    graph.output((made, *taken(backward, [*given[:3], *sums])))
    return graph


@pytest.mark.parametrize("bias", [True, False])
def test_a_decomposed_cell_computes_the_same_values_and_gradients(bias: bool) -> None:
    graph = traced(bias=bias)
    cells.DecomposeGruCells()(graph)
    graph.lint()
    program = GraphModule({}, graph)
    assert "gru_cell" not in program.code

    given, grad = parts(bias), draw(HIDDEN, ROWS).t()
    found = program(*given, grad)
    expected = cells.gru_cell(*given)[0]
    learning = [leaf for leaf in given if leaf is not None]
    gradients = torch.autograd.grad(expected, learning, grad)
    torch.testing.assert_close(found[0], expected)
    torch.testing.assert_close([value for value in found[1:] if value is not None], list(gradients))


def test_the_decomposition_equals_torchs_cell() -> None:
    cell, x, hidden = nn.GRUCell(WIDTH, HIDDEN).double(), draw(ROWS, WIDTH), draw(ROWS, HIDDEN)
    of_input, of_hidden = x @ cell.weight_ih.t(), hidden @ cell.weight_hh.t()
    found = cells.gru_cell(of_input, of_hidden, hidden, cell.bias_ih, cell.bias_hh)[0]
    torch.testing.assert_close(found, cell(x, hidden))


def test_a_cell_of_another_dtype_is_left_alone() -> None:
    graph = traced(dtype=torch.float16)
    cells.DecomposeGruCells()(graph)
    assert graph.find_nodes(op="call_function", target=aten._thnn_fused_gru_cell.default)


def test_a_cell_whose_saved_values_have_other_readers_is_left_alone() -> None:
    graph = traced()
    (backward,) = graph.find_nodes(op="call_function", target=aten._thnn_fused_gru_cell_backward.default)
    with graph.inserting_before(backward):
        graph.call_function(aten.neg.default, (backward.args[1],))
    cells.DecomposeGruCells()(graph)
    assert graph.find_nodes(op="call_function", target=aten._thnn_fused_gru_cell.default)

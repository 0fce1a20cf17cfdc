"""Large matrices are padded for matmuls in 16 bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph

from flodl.engine.compile.passes.matmuls.padding import AlignMatmuls

from ..rewritten_programs import num_calls, rewritten

aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("passes_on_cpu")
WORDS = 1027


def changed(program, *inputs: Tensor) -> Graph:
    """Trace a program, rewrite its graph, and check that it is valid and computes the same."""
    traced = rewritten(program, AlignMatmuls(), *inputs)
    for ours, theirs in zip(traced(*inputs), program(*inputs), strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
    return traced.graph


def pads(graph: Graph) -> int:
    return num_calls(graph, aten.constant_pad_nd.default)


def matrix(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def shapes(graph: Graph) -> list[tuple[int, ...]]:
    return [tuple(n.meta["val"].shape) for n in graph.find_nodes(op="call_function", target=aten.mm.default)]


def test_logits_and_their_gradients_share_padded_matrices() -> None:
    """The three matmuls of a layer with a large vocabulary need two padded matrices."""

    def program(x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        logits = aten.mm(x, aten.permute(weight, [1, 0]))
        grad = grad * logits
        return logits, aten.mm(grad, weight), aten.mm(aten.permute(grad, [1, 0]), x)

    graph = changed(program, matrix(32, 16), matrix(WORDS, 16), matrix(32, WORDS))
    assert pads(graph) == 2
    assert shapes(graph) == [(32, 1032), (32, 16), (1032, 16)]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1024, 16), torch.bfloat16), ((1023, 16), torch.bfloat16), ((WORDS, 16), torch.float32)],
    ids=["aligned", "small", "float32"],
)
def test_other_matmuls_are_left_alone(shape: tuple[int, int], dtype: torch.dtype) -> None:
    def program(x: Tensor, weight: Tensor) -> tuple[Tensor]:
        return (aten.mm(x, aten.permute(weight, [1, 0])),)

    assert pads(changed(program, matrix(8, 16, dtype=dtype), matrix(*shape, dtype=dtype))) == 0


def test_a_number_of_rows_that_is_not_a_multiple_is_left_alone() -> None:
    """A batch of 1,027 rows costs nothing: its rows are aligned."""

    def program(x: Tensor, weight: Tensor) -> tuple[Tensor]:
        return (aten.mm(x, aten.permute(weight, [1, 0])),)

    assert pads(changed(program, matrix(WORDS, 16), matrix(24, 16))) == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's compiler
def test_a_compiled_language_model_learns_the_same() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, WORDS, bias=False))
    x, words = torch.randn(8, 16), torch.randint(WORDS, (8,))
    found = []
    for options in ({}, {"joint_custom_pre_pass": AlignMatmuls()}):
        torch._dynamo.reset()

        def loss(x: Tensor, words: Tensor) -> Tensor:
            return nn.functional.cross_entropy(model(x).float(), words)

        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            value = torch.compile(loss, dynamic=False, options=options)(x, words)
        value.backward()
        found.append([value.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=1e-3)

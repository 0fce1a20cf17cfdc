"""Values that are costly to compute and read many times are stored."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from flodl.engine.compile.passes.stored_values import StoreSharedValues

from .rewritten_programs import counted, num_calls, rewritten

aten = torch.ops.aten
cast = torch.ops.prims.convert_element_type.default
stored = torch.ops.flodl.stored.default
ordered = torch.ops.prims.inductor_force_stride_order.default
pytestmark = pytest.mark.usefixtures("passes_on_cpu")


def num_stored(program: Callable[..., Tensor], *inputs: Tensor) -> int:
    """Trace a program, rewrite its graph and check the result; return how many values are stored."""
    traced = rewritten(program, StoreSharedValues(), *inputs)
    assert torch.equal(traced(*inputs), program(*inputs))
    return num_calls(traced.graph, stored)


def rotated(positions: Tensor, *queries: Tensor) -> Tensor:
    """Rotate queries of shape [batch, heads, length, width], as a Llama does."""
    cosine, sine = (
        aten.unsqueeze(cast(function(positions), torch.bfloat16), 1) for function in (aten.cos, aten.sin)
    )
    return sum(
        (aten.add(aten.mul(query, cosine), aten.mul(aten.neg(query), sine)) for query in queries),
        start=torch.zeros(()),
    )


POSITIONS = torch.linspace(0, 100, 1 << 14).reshape(1, 256, 64)


def test_sines_and_cosines_that_all_heads_and_layers_read_are_stored() -> None:
    queries = [torch.randn(16, 8, 256, 64, dtype=torch.bfloat16) for _ in range(2)]
    assert num_stored(rotated, POSITIONS, *queries) == 2


def test_positions_that_are_looked_up_are_stored_after_all_that_is_computed_from_them() -> None:
    def program(distances: Tensor, scores: Tensor) -> Tensor:
        buckets = cast(aten.clamp(aten.mul(aten.log(distances), 3.0), 0, 63), torch.int64)
        index = aten.expand(aten.unsqueeze(buckets, 0), [64, 256, 256])
        return aten.gather(scores, -1, index)

    distances, scores = torch.rand(256, 256) * 500 + 1, torch.randn(64, 256, 64)
    traced = rewritten(program, StoreSharedValues(), distances, scores)
    (node,) = traced.graph.find_nodes(op="call_function", target=stored)
    assert node.meta["val"].dtype is torch.int64
    assert num_stored(program, distances, scores) == 1


def test_a_bias_that_was_looked_up_is_stored_in_the_order_of_the_scores() -> None:
    def program(table: Tensor, buckets: Tensor, scores: Tensor) -> Tensor:
        bias = aten.unsqueeze(aten.permute(aten.embedding(table, buckets), [2, 0, 1]), 0)
        return aten.add(scores, bias)

    inputs = torch.randn(32, 8), torch.randint(32, (128, 128)), torch.randn(32, 8, 128, 128)
    traced = rewritten(program, StoreSharedValues(), *inputs)
    (node,) = traced.graph.find_nodes(op="call_function", target=ordered)
    assert node.meta["val"].is_contiguous()
    assert torch.equal(traced(*inputs), program(*inputs))
    few = torch.randn(1, 8, 128, 128)
    assert num_calls(rewritten(program, StoreSharedValues(), *inputs[:2], few).graph, ordered) == 0


def test_small_values_and_values_that_are_not_repeated_are_left_alone() -> None:
    few = torch.randn(1, 8, 256, 64, dtype=torch.bfloat16)
    assert num_stored(rotated, POSITIONS, few) == 0

    def same_size(x: Tensor) -> Tensor:
        return aten.mul(aten.sin(x), x)

    def number(x: Tensor, scale: Tensor) -> Tensor:
        return aten.mul(x, aten.log(scale))

    large = torch.rand(1 << 21)
    assert num_stored(same_size, large) == 0
    assert num_stored(number, large, torch.tensor([2.0])) == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's compiler
def test_compiled_code_reads_the_stored_values() -> None:
    class Rotary(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            positions = torch.linspace(0, 100, 64)[:, None] * torch.linspace(0, 1, 32)
            return x * positions.cos() + x.flip(-1) * positions.sin()

    counting, counts = counted(StoreSharedValues, stored)
    model = Rotary()
    compiled = torch.compile(model, options={"post_grad_custom_post_pass": counting}, dynamic=False)
    results = []
    for forward in (model, compiled):
        x = torch.randn(1024, 64, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
        result = forward(x)
        result.square().sum().backward()
        results.append((result.detach(), x.grad))
    assert counts == [2, 2]
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)

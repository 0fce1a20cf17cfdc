"""Matmuls of weight gradients write float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flodl.engine.compile.passes.matmuls.weight_gradients import WeightGradientsInFloat32

from ..rewritten_programs import counted, num_calls, rewritten

aten = torch.ops.aten
cast = torch.ops.prims.convert_element_type.default
to_float32 = torch.ops.flodl.mm_to_float32.default
pytestmark = pytest.mark.usefixtures("passes_on_cpu")


def changed(program, *inputs: Tensor) -> int:
    """Trace a program and rewrite its graph; return how many matmuls write float32 now."""
    traced = rewritten(program, WeightGradientsInFloat32(), *inputs)
    for ours, theirs in zip(traced(*inputs), program(*inputs), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
    return num_calls(traced.graph, to_float32)


def matrix(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(sum(shape)))


def test_a_weight_gradient_is_written_in_float32() -> None:
    def program(x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        return (cast(aten.mm(aten.permute(grad, [1, 0]), x), torch.float32),)

    assert changed(program, matrix(32, 8), matrix(32, 6)) == 1


def test_an_input_that_is_transposed_in_memory_counts_as_transposed() -> None:
    def program(x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        return (cast(aten.mm(grad, x), torch.float32),)

    assert changed(program, matrix(32, 8), matrix(32, 6).t()) == 1
    assert changed(program, matrix(32, 8), matrix(6, 32)) == 0


def test_views_in_between_and_after_it_are_kept() -> None:
    def program(x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        product = aten.mm(aten.permute(grad, [1, 0]), x)
        return (aten.permute(cast(aten.slice(product, 0, 0, 5), torch.float32), [1, 0]),)

    assert changed(program, matrix(32, 8), matrix(32, 6)) == 1


def test_results_that_are_used_further_are_left_alone() -> None:
    def logits(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return (cast(aten.mm(x, aten.permute(weight, [1, 0])), torch.float32),)

    def summed(x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        return (cast(aten.mm(aten.permute(grad, [1, 0]), x), torch.float32) + 1,)

    def read_twice(x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        product = aten.mm(aten.permute(grad, [1, 0]), x)
        return cast(product, torch.float32), product + 1

    assert changed(logits, matrix(32, 8), matrix(6, 8)) == 0
    assert changed(summed, matrix(32, 8), matrix(32, 6)) == 0
    assert changed(read_twice, matrix(32, 8), matrix(32, 6)) == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's compiler
def test_a_compiled_step_with_autocast_has_the_gradients_of_eager() -> None:
    """Through the whole compiler, on a CPU."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    x = torch.randn(64, 8)
    counting, counts = counted(WeightGradientsInFloat32, to_float32)
    options = {"post_grad_custom_post_pass": counting}
    compiled = torch.compile(lambda x: model(x).float().square().mean(), dynamic=False, options=options)
    found: list[list[Tensor]] = []
    for run in (compiled, lambda x: model(x).float().square().mean()):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = run(x)
        loss.backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
    assert counts[-1] == 2

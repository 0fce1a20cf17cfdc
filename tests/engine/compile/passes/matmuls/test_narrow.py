"""Float32 matmuls of values that were widened from 16 bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from flodl.engine.compile.passes.matmuls.narrow import MatmulsIn16Bits

from ..rewritten_programs import counted, num_calls, rewritten

aten = torch.ops.aten
cast = torch.ops.prims.convert_element_type.default
to_float32 = torch.ops.flodl.bmm_to_float32.default
pytestmark = pytest.mark.usefixtures("passes_on_cpu")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def random(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def narrowed(program, *inputs: Tensor, tolerance: float = 1e-5) -> tuple[int, int]:
    """Rewrite a program; return how many matmuls write float32, and how many have operands in 16 bits."""
    traced = rewritten(program, MatmulsIn16Bits(), *inputs)
    ours, theirs = traced(*inputs), program(*inputs)
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    narrow = [
        node
        for target in (aten.bmm.default, aten.mm.default)
        for node in traced.graph.find_nodes(op="call_function", target=target)
        if node.meta["val"].dtype is not FP32
    ]
    return num_calls(traced.graph, to_float32), len(narrow)


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_two_widened_operands_give_the_same_result_in_float32(dtype: torch.dtype) -> None:
    def scores(queries: Tensor, keys: Tensor) -> Tensor:
        keys = aten.mul.Tensor(aten.permute(cast(keys, FP32), [0, 2, 1]), 1.0)
        return aten.exp(aten.bmm(cast(queries, FP32), keys))

    assert narrowed(scores, random(2, 4, 8, dtype=dtype), random(2, 6, 8, dtype=dtype)) == (1, 0)


def test_an_operand_is_rounded_if_the_result_is() -> None:
    def mixed(weights: Tensor, values: Tensor) -> Tensor:
        product = aten.bmm(weights, cast(values, FP32))
        return cast(aten.view(product, [1, 2, 4, 8]), BF16)

    weights = random(2, 4, 6, dtype=FP32).softmax(-1)
    assert narrowed(mixed, weights, random(2, 6, 8), tolerance=2e-2) == (0, 1)


def test_a_value_that_several_matmuls_read_is_rounded_once() -> None:
    def program(weights: Tensor, values: Tensor, grad: Tensor) -> Tensor:
        product = cast(aten.bmm(weights, cast(values, FP32)), BF16)
        back = cast(aten.bmm(aten.permute(weights, [0, 2, 1]), cast(grad, FP32)), BF16)
        # As autocast writes it.
        again = aten.bmm(cast(aten.permute(aten.permute(weights, [2, 0, 1]), [1, 0, 2]), BF16), grad)
        return aten.cat([product, back, again], 1)

    inputs = random(2, 4, 6, dtype=FP32).softmax(-1), random(2, 6, 8), random(2, 4, 8)
    assert narrowed(program, *inputs, tolerance=2e-2) == (0, 3)
    traced = rewritten(program, MatmulsIn16Bits(), *inputs)
    weights = next(iter(traced.graph.nodes))
    assert [user.target for user in weights.users] == [cast]


def test_a_result_that_is_scaled_before_it_is_rounded_stays_in_float32() -> None:
    def mixed(grads: Tensor, keys: Tensor) -> Tensor:
        return cast(aten.mul.Tensor(aten.bmm(grads, cast(keys, FP32)), 0.125), BF16)

    assert narrowed(mixed, random(2, 4, 6, dtype=FP32), random(2, 6, 8), tolerance=2e-2) == (1, 0)


def test_a_float32_operand_keeps_its_precision_if_the_result_does() -> None:
    def kept(left: Tensor, right: Tensor) -> Tensor:
        return aten.bmm(left, cast(right, FP32))

    def read_twice(left: Tensor, right: Tensor) -> Tensor:
        product = kept(left, right)
        return cast(product, BF16) + product.sum()

    def scaled_operand(left: Tensor, right: Tensor) -> Tensor:
        return aten.bmm(aten.mul.Tensor(cast(cast(left, BF16), FP32), 0.3), cast(right, FP32))

    for program in (kept, read_twice, scaled_operand):
        assert narrowed(program, random(2, 4, 6, dtype=FP32), random(2, 6, 8)) == (0, 0)


def test_gradients_are_not_rounded_to_float16() -> None:
    def mixed(grads: Tensor, keys: Tensor) -> Tensor:
        return cast(aten.bmm(grads, cast(keys, FP32)), FP16)

    assert narrowed(mixed, random(2, 4, 6, dtype=FP32), random(2, 6, 8, dtype=FP16)) == (0, 0)


def test_operands_of_different_types_are_left_alone() -> None:
    def mixed(left: Tensor, right: Tensor) -> Tensor:
        return cast(aten.mm(cast(left, FP32), cast(right, FP32)), BF16)

    assert narrowed(mixed, random(4, 6), random(6, 8, dtype=FP16)) == (0, 0)
    assert narrowed(mixed, random(4, 6), random(6, 8)) == (0, 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's compiler
def test_attention_with_a_bias_that_no_kernel_supports_uses_16_bits() -> None:
    """Through the whole compiler, on a CPU: all six matmuls of forward and backward."""
    counting, counts = counted(MatmulsIn16Bits, to_float32)

    def attend(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            mixed = scaled_dot_product_attention(queries, keys, values, attn_mask=bias.to(BF16), scale=1.0)
        return mixed.float().square().mean()

    options = {"joint_custom_pre_pass": counting}
    compiled = torch.compile(attend, dynamic=False, options=options)
    found: list[list[Tensor]] = []
    for run in (compiled, attend):
        inputs = [random(2, 3, 16, 8).requires_grad_() for _ in range(3)]
        inputs.append(random(1, 16, 16, 3, dtype=FP32).permute(0, 3, 1, 2).requires_grad_())
        run(*inputs).backward()
        found.append([one.grad for one in inputs if one.grad is not None])
    for ours, theirs in zip(*found, strict=True):
        gap = (ours.float() - theirs.float()).norm() / theirs.float().norm()
        assert gap < 0.02
    # The scores, and their gradients; the other four are rounded to 16 bits.
    assert counts == [2]

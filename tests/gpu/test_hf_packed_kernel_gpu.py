"""Attention within packed sentences: the Triton kernels against attention of each sentence in float64."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from flodl.hf.kernels.packed import packed_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),  # torch's compiler
]
LENGTHS = [[3, 32, 1, 17], [40, 7, 0, 96, 33, 0], [256, 1, 130]]
# Relative to the largest value.
BOUNDS = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def inputs(lengths: list[int], heads: int, width: int, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(0)
    tokens = sum(lengths)
    parts = [torch.randn(tokens, heads * width, device="cuda", dtype=dtype) for _ in range(3)]
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device="cuda")
    return [part.view(tokens, heads, width).requires_grad_() for part in parts], bounds


def expected(parts: list[Tensor], bounds: Tensor, reach: int) -> Tensor:
    found = []
    for start, end in pairwise(bounds.tolist()):
        query, key, value = (part[start:end].transpose(0, 1) for part in parts)
        place = torch.arange(end - start, device="cuda")
        mask = None if reach < 0 else (place[:, None] - place).abs() <= reach
        found.append(scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(0, 1))
    return torch.cat(found)


@pytest.mark.parametrize("lengths", LENGTHS, ids=["short", "mixed", "long"])
@pytest.mark.parametrize("width", [24, 32, 64, 128])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("reach", [-1, 5])
def test_outputs_and_gradients_are_those_of_each_sentence(lengths, width, dtype, reach) -> None:
    parts, bounds = inputs(lengths, 3, width, dtype)
    out = packed_attention(*parts, bounds, longest=max(lengths), reach=reach)
    grad = torch.randn_like(out)
    out.backward(grad)
    exact = [part.detach().double().requires_grad_() for part in parts]
    want = expected(exact, bounds, reach)
    want.backward(grad.double())
    pairs = [(out, want), *((part.grad, other.grad) for part, other in zip(parts, exact))]
    for found, value in pairs:
        assert (found - value).abs().max() <= BOUNDS[dtype] * value.abs().max().clamp(min=1)


def test_the_same_inputs_give_the_same_bits() -> None:
    results = []
    for _ in range(2):
        parts, bounds = inputs([40, 7, 0, 96, 33], 12, 64, torch.bfloat16)
        out = packed_attention(*parts, bounds, longest=96)
        out.float().square().sum().backward()
        results.append([out, *(part.grad for part in parts)])
    assert all(map(torch.equal, *results))


def test_it_is_compiled_without_a_graph_break() -> None:
    parts, bounds = inputs([40, 7, 0, 96, 33], 12, 64, torch.bfloat16)

    def loss(*parts: Tensor) -> Tensor:
        return (packed_attention(*parts, bounds, longest=96).float() * 2).square().sum()

    eager = torch.autograd.grad(loss(*parts), parts)
    compiled = torch.autograd.grad(torch.compile(loss, fullgraph=True)(*parts), parts)
    for found, want in zip(compiled, eager):
        torch.testing.assert_close(found, want, rtol=2e-2, atol=2e-2)

"""Compiled steps whose products were written in another way train as eager ones do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from flodl.engine import TrainStep
from flodl.engine.compile.passes.matmuls.narrow import bmm_to_float32
from flodl.engine.compile.passes.matmuls.times import MatmulTimes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's compiler
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def test_times_are_measured_once_for_each_form() -> None:
    times = MatmulTimes()
    left, right = (64, 256, False), (256, 128, True)
    first = times.matmul(left, right)
    assert 0 < first < math.inf
    assert times.matmul(left, right) == first
    assert 0 < times.split_k(left, right, 4) < math.inf
    assert 0 < times.batch(left, right, 3, shared=True, copied=[right]) < math.inf


class Unrolled(nn.Module):
    """A GRU cell stepped over time, with or without biases."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.cell, self.exit = nn.GRUCell(32, 64, bias=bias), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.new_zeros(len(x), 64)
        for time in range(x.shape[1]):
            hidden = self.cell(x[:, time], hidden)
        return self.exit(hidden)


class Experts(nn.Module):
    """Layers side by side over one input, added up."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))
        self.exit = nn.Linear(256, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.exit(sum(layer(x).relu() for layer in self.layers))


class Encoder(nn.Module):
    """Torch's own encoder, with dropout in its attention as well."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=batch_first)
        self.layers, self.exit = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.exit(self.layers(x).mean(1))


class PositionBias(nn.Module):
    """Attention with a bias that no fused kernel supports, as in T5: it is computed in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.exit = nn.Linear(64, 192), nn.Linear(64, 8)
        self.bias = nn.Embedding(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = (
            part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.inputs(x).chunk(3, -1)
        )
        places = torch.arange(x.shape[1], device=x.device)
        bias = self.bias((places[:, None] - places).clamp(-16, 15) + 16).permute(2, 0, 1).unsqueeze(0)
        mixed = nn.functional.scaled_dot_product_attention(
            queries, keys, values, bias.to(queries.dtype), dropout_p=0.1
        )
        return self.exit(mixed.transpose(1, 2).flatten(2).mean(1))


MODELS = {
    "an encoder": (lambda: Encoder(batch_first=True), (8, 16, 64)),
    "an encoder with positions first": (lambda: Encoder(batch_first=False), (8, 16, 64)),
    "a loop over time": (lambda: Unrolled(bias=True), (16, 9, 32)),
    "a loop without biases": (lambda: Unrolled(bias=False), (16, 9, 32)),
    "experts": (Experts, (64, 256)),
    "a tower": (
        lambda: nn.Sequential(*(nn.Linear(512, 512) for _ in range(5)), nn.Linear(512, 8)),
        (64, 512),
    ),
}


HALF_PRECISION = {
    "an encoder": lambda: Encoder(batch_first=True),
    "an encoder with positions first": lambda: Encoder(batch_first=False),
    "attention with a position bias": PositionBias,
}


@pytest.mark.parametrize("name", HALF_PRECISION)
def test_a_compiled_model_in_half_the_precision_follows_eager(name: str) -> None:
    """The kernels of attention are others there."""
    ends = []
    for tier in ("eager", "compiled"):
        torch.manual_seed(0)
        net = HALF_PRECISION[name]().cuda()
        x = torch.randn(8, 16, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
        step = TrainStep(
            net,
            torch.optim.Adam(net.parameters(), lr=1e-3),
            lambda net, x: nn.functional.mse_loss(net(x), x.flatten(1)[:, :8]),
            tier=tier,
            precision="bf16",
        )
        losses = [step(x) for _ in range(60)]
        assert step.tier == tier, step.report()
        ends.append(torch.stack(losses))
    torch.testing.assert_close(ends[1], ends[0], rtol=0.1, atol=0.02)
    assert ends[1][-1] < ends[1][0]


@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_step_follows_eager(name: str) -> None:
    make, shape = MODELS[name]
    ends = []
    for tier in ("eager", "compiled"):
        torch.manual_seed(0)
        net = make().cuda()
        source = torch.Generator("cuda").manual_seed(1)
        batches = [torch.randn(*shape, device="cuda", generator=source) for _ in range(5)]
        step = TrainStep(
            net,
            torch.optim.Adam(net.parameters(), lr=1e-3),
            lambda net, x: nn.functional.mse_loss(net(x), x.flatten(1)[:, :8]),
            tier=tier,
        )
        losses = [step(batches[turn % 5]) for turn in range(60)]
        assert step.tier == tier, step.report()
        ends.append(torch.stack(losses))
    torch.testing.assert_close(ends[1], ends[0], rtol=5e-3, atol=1e-5)
    assert ends[1][-1] < ends[1][0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_product_in_16_bits_is_returned_as_it_was_summed(dtype: torch.dtype) -> None:
    left, right = (torch.randn(4, 32, 64, device="cuda", dtype=dtype) for _ in range(2))
    found = bmm_to_float32(left, right.mT)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, left.float() @ right.float().mT, rtol=1e-4, atol=1e-4)

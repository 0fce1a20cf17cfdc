"""On CUDA a profile tells device time: kernels, not launches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, SoftmaxRouter

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_device_times_are_positive_and_add_up():
    step = FlowBuilder(nn.Linear(1024, 1024)).through(nn.GELU()).build()
    model = (
        FlowBuilder(nn.Linear(1024, 1024))
        .through(nn.LayerNorm(1024))
        .loop_body(step)
        .for_n(3)
        .gate(SoftmaxRouter(1024, 2), [nn.Linear(1024, 1024), nn.Linear(1024, 1024)])
        .build()
        .cuda()
    )
    profile = model.profile(torch.randn(4096, 1024, device="cuda"))
    assert profile.device == torch.cuda.get_device_name()
    assert all(row.seconds > 0 for row in profile.rows)
    top = sum(row.seconds for row in profile.rows if row.depth == 0)
    assert 0.5 * profile.total_s <= top <= 1.01 * profile.total_s
    body = profile["loop_1.body"]
    assert body.calls == 3
    assert profile.seconds("loop_1.body.linear_1") < body.seconds


def test_a_large_product_takes_longer_than_a_small_one_although_both_launch_alike():
    def times(batch: int) -> float:
        model = FlowBuilder(nn.Linear(2048, 2048)).build().cuda()
        return model.profile(torch.randn(batch, 2048, device="cuda")).seconds("linear_1")

    assert times(32768) > 4 * times(32)


def test_launch_gaps_are_nobodys_time():
    builder = FlowBuilder(nn.Linear(64, 64))
    for _ in range(60):
        builder = builder.through(nn.ReLU())
    model = builder.build().cuda()
    x = torch.randn(64, 64, device="cuda")
    profile = model.profile(x)
    for _ in range(10):
        model(x)
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(50):
        model(x)
    end.record()
    torch.cuda.synchronize()
    assert profile.total_s < start.elapsed_time(end) / 1e3 / 50


def test_the_generator_of_the_device_is_put_back():
    model = FlowBuilder(nn.Dropout(0.5)).through(nn.BatchNorm1d(8)).build().cuda()
    x = torch.randn(32, 8, device="cuda")
    state = torch.cuda.get_rng_state()
    mean = model.batchnorm1d_1.running_mean.clone()
    model.profile(x)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.equal(model.batchnorm1d_1.running_mean, mean)


def test_the_heat_map_is_drawn_from_device_times():
    pytest.importorskip("wasmtime", reason="nothing here lays out pictures")
    model = FlowBuilder(nn.Linear(8, 8)).through(nn.ReLU()).build().cuda()
    text = model.svg_with_profile(example=torch.randn(4, 8, device="cuda"))
    assert torch.cuda.get_device_name() in text

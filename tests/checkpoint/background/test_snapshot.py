"""Snapshots: copies that do not change with the live tensors."""

import io

import pytest
import torch
from torch import nn

from flodl import FlowBuilder
from flodl.checkpoint import BackgroundWriter, latest_bundle, read_bundle, snapshot_cpu
from flodl.checkpoint.background.snapshot import Staging

from ..states import same


def test_a_snapshot_shares_nothing_and_keeps_ties():
    shared = torch.zeros(3)
    state = {"a": shared, "b": [shared, (shared.t(), None)], "strided": torch.arange(6.0).reshape(2, 3).t()}
    copy = snapshot_cpu(state)
    assert same(snapshot_cpu(copy), copy)
    shared += 1
    assert not copy["a"].any()
    assert copy["a"] is copy["b"][0]
    assert torch.equal(copy["strided"], state["strided"])


def test_memory_is_reused():
    staging = Staging()
    tensors = {"a": torch.ones(3), "b": torch.ones(3), "c": torch.ones(2)}
    first = staging.copy(tensors)
    places = {tensor.data_ptr() for tensor in first.tensors.values()}
    assert {tensor.data_ptr() for tensor in staging.copy(tensors).tensors.values()}.isdisjoint(places)
    staging.release(first)
    assert {tensor.data_ptr() for tensor in staging.copy(tensors).tensors.values()} == places


def test_conjugated_tensors_are_saved_by_value():
    value = torch.tensor([1 + 2j, 3 - 1j])
    copy = snapshot_cpu({"c": value.conj(), "plain": value})
    assert torch.equal(copy["c"], torch.tensor([1 - 2j, 3 + 1j]))
    assert torch.equal(copy["plain"], value)


def test_a_graph_returns_a_snapshot():
    model = FlowBuilder(nn.Linear(2, 2)).tag("body").build()
    model.record("loss", 0.5)
    model.end_epoch()
    snapshot = model.snapshot_cpu()
    before = model.body.weight.detach().clone()
    with torch.no_grad():
        model.body.weight += 1
    assert torch.equal(snapshot.tensors["body.weight"], before)
    assert (snapshot.metrics, snapshot.epoch) == ({"loss": 0.5}, 1)
    for format in ("safetensors", "fdlc"):
        stream = io.BytesIO()
        snapshot.save(stream, format=format)
        stream.seek(0)
        report = model.load_checkpoint(stream)
        assert report.is_complete
        assert torch.equal(model.body.weight, before)
    assert report.same_function is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_snapshot_has_the_values_at_the_call(tmp_path):
    weight = torch.zeros(20_000_000, device="cuda")
    with BackgroundWriter(tmp_path) as writer:
        for step in range(4):
            weight.fill_(step)
            writer.save(step, {"model": {"w": weight, "tied": weight}})
            weight.fill_(-1.0)
        writer.wait()
        for step in range(4):
            state = read_bundle(tmp_path / f"step-{step:08d}")["model"]
            assert (state["w"] == step).all()
            assert state["w"] is state["tied"]
            assert state["w"].device.type == "cpu"
    assert latest_bundle(tmp_path).bundle.step == 3
    assert (snapshot_cpu({"w": weight})["w"] == -1).all()

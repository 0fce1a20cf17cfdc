"""On CUDA: NCCL with a single rank, and two processes that share the GPU and reduce over host copies."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from flodl.distributed.coordination import Reduce
from flodl.distributed.reduction import FlatState, Nesterov, Reducer, connect_store, host_store
from flodl.distributed.reduction.links import NcclLink
from flodl.distributed.reduction.vectors import divide_

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def make_model(seed, device="cuda"):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(300, 200), nn.BatchNorm1d(200), nn.Linear(200, 10).bfloat16())
    return model.to(device)


def step(model, scale):
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            torch.manual_seed(index)
            parameter += (scale * torch.randn(parameter.shape)).to(parameter)
        model[1].running_mean += scale
        model[1].num_batches_tracked += 1


def command(window, weights, bases=None, *, members=(0, 1)):
    bases = tuple(bases or [window] * len(members))
    return Reduce(window, 1, 0, members, tuple(weights), bases, 0, 30e3, "test")


def values(reducer):
    return reducer.state.read(reducer.state.empty())


# NCCL, in a world of one.


@pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="no NCCL")
def test_all_operations_of_nccl_in_a_world_of_one():
    link = NcclLink(host_store(), "test", 0, 1, torch.device("cuda", 0))
    deadline = time.monotonic() + 60.0
    given = torch.randn(1000, device="cuda")
    for run in (link.sum_, link.max_):
        found = given.clone()
        assert run(found, deadline) == 0
        assert torch.equal(found, given)
    assert link.broadcast_(given.clone(), 0, deadline) == 0
    for dtype in (torch.bfloat16, torch.int64, torch.float64):
        sent, out = given.to(dtype), torch.empty(1000, dtype=dtype, device="cuda")
        assert link.exchange(out, sent, deadline) == 0
        assert torch.equal(out, sent)
        assert link.gather(out.zero_(), sent, deadline) == 0
        assert torch.equal(out, sent)
    link.close()
    with pytest.raises(RuntimeError, match="the process group is closed"):
        link.sum_(given, deadline)


@pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="no NCCL")
def test_nccl_can_be_formed_again_after_it_was_closed():
    store = host_store()
    for generation in range(3):
        link = NcclLink(store, f"g{generation}", 0, 1, torch.device("cuda", 0))
        given = torch.ones(10, device="cuda")
        link.sum_(given, time.monotonic() + 60.0)
        assert given.sum().item() == 10.0
        link.close()


# A single member.


def test_a_world_of_one_keeps_its_weights_bit_for_bit():
    model = make_model(0)
    reducer = Reducer(FlatState.of(model))
    reducer.rebuild(None, 1, 0, (0,), 10.0)
    for window in range(3):
        step(model, 0.1)
        before = values(reducer)
        reducer.reduce(command(window, [3], members=(0,)))
        reducer.commit()
        assert torch.equal(values(reducer), before)
        assert torch.equal(reducer.consensus, before)


def test_reading_and_writing_do_not_wait_for_the_device():
    model = make_model(0)
    state = FlatState.of(model)
    flat = state.read(state.empty())
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        state.write(divide_(state.read(flat), 3.0))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_divisions_round_as_on_the_cpu():
    given = torch.randn(100_000)
    for divisor in (3.0, 7.0, 1000.0):
        assert torch.equal(divide_(given.clone(), divisor), divide_(given.cuda(), divisor).cpu())


def test_a_reduction_in_the_background_keeps_local_steps():
    model = make_model(0)
    reducer = Reducer(FlatState.of(model), keep_local=True, outer=Nesterov())
    reducer.rebuild(None, 1, 0, (0,), 10.0)
    reducer.reduce(command(0, [0], members=(0,)))
    reducer.commit()
    for window in range(1, 4):
        step(model, 0.1)
        reducer.capture(1)
        contributed = values(reducer)
        thread = threading.Thread(target=reducer.reduce, args=(command(window, [1], members=(0,)),))
        thread.start()
        step(model, 0.01)
        ahead = values(reducer)
        thread.join()
        reducer.commit()
        num = 300 * 200
        expected = (ahead.double() + reducer.consensus.double() - contributed.double())[:num]
        torch.testing.assert_close(values(reducer)[:num].double(), expected, rtol=1e-6, atol=1e-6)


# Two processes on one GPU, or one of them on the CPU.


def run_rank(index, port, folder, device, wire):
    """The body of a rank: four windows, of which the first delivers the weights of rank 0."""
    torch.set_num_threads(1)
    model = make_model(index, device)
    reducer = Reducer(FlatState.of(model), wire=wire, outer=Nesterov())
    reducer.rebuild(connect_store(port), 1, index, (0, 1), 60.0)
    reducer.reduce(command(0, [0, 0], [0, -1]))
    reducer.commit()
    contributed, versions = [], [values(reducer).cpu()]
    for window in range(1, 4):
        step(model, 0.1 * (index + 1))
        contributed.append(values(reducer).cpu())
        report = reducer.reduce(command(window, [1, 3]))
        assert torch.equal(values(reducer).cpu(), contributed[-1])
        reducer.commit()
        versions.append(values(reducer).cpu())
        assert torch.equal(versions[-1], reducer.consensus.cpu())
        assert report.num_bytes > 0
    result = {
        "versions": torch.stack(versions),
        "contributed": torch.stack(contributed),
        "momentum": reducer.outer_state()["momentum"].cpu(),
        "tracked": int(model[1].num_batches_tracked),
        "backend": (reducer.backend, reducer.reason),
    }
    torch.save(result, Path(folder) / f"{index}.pt")


@pytest.mark.parametrize("wire", ["fp32", "bf16"])
@pytest.mark.parametrize("devices", [("cuda", "cuda"), ("cuda", "cpu")])
def test_processes_that_nccl_refuses_reduce_over_host_copies(tmp_path, wire, devices):
    store = host_store()
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(index), str(store.port), str(tmp_path), device, wire],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        for index, device in enumerate(devices)
    ]
    assert [rank.wait(timeout=200) for rank in ranks] == [0, 0]
    results = [torch.load(tmp_path / f"{index}.pt") for index in (0, 1)]
    why = "ranks 0 and 1 share a GPU" if devices[1] == "cuda" else "rank 1: the model is on cpu"
    for result in results:
        assert result["backend"] == ("host", f"NCCL cannot be used: {why}")
        assert result["tracked"] == 3
        for key in ("versions", "momentum"):
            assert torch.equal(result[key], results[0][key]), key
    # The first window, in float64, on the float32 parameters.
    num = 300 * 200
    start = results[0]["versions"][0].double()[:num]
    given = [result["contributed"][0].double()[:num] - start for result in results]
    progress = (given[0] + 3 * given[1]) / 4
    Nesterov().update(progress, torch.zeros_like(progress))
    allowed = 1e-6 + (2**-7 * 1.33 * (given[0].abs() + 3 * given[1].abs()) / 4 if wire == "bf16" else 0.0)
    assert ((results[0]["versions"][1].double()[:num] - start - progress).abs() <= allowed).all()


if __name__ == "__main__":
    run_rank(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])

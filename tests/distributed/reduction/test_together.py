"""Ranks in their own processes: the same bits everywhere, and the mean that one process would compute."""

import os
import time

import psutil
import pytest
import torch
from torch import nn

from flodl.distributed.reduction import Mean, Nesterov, SlowMomentum

from .small_model import assert_close, assert_identical, make_model, train

pytestmark = pytest.mark.slow
OUTERS = {"mean": Mean(), "slow": SlowMomentum(0.8, 0.9), "nesterov": Nesterov()}


def several_windows(rank):
    model = make_model(rank.index)
    reducer = rank.start(model, wire=rank.arguments["wire"], outer=OUTERS[rank.arguments["outer"]])
    rank.first()
    assert torch.equal(rank.values(), reducer.consensus)
    contributed, reports, versions, momenta = [], [], [rank.values()], []
    for window in range(1, 4):
        train(model, seed=10 * window + rank.index, steps=rank.index + 1)
        contributed.append(rank.values())
        momenta.append(reducer.outer_state().get("momentum", torch.zeros(0)).clone())
        reports.append(rank.reduce(window, [1, 2, 3]))
        assert torch.equal(rank.values(), contributed[-1]), "nothing changes before the commit"
        assert torch.equal(reducer.consensus, versions[-1])
        reducer.commit()
        versions.append(rank.values())
        assert torch.equal(reducer.consensus, versions[-1])
        assert reducer.version == window + 1
    return {
        "values": torch.stack(versions),
        "contributed": contributed,
        "reports": reports,
        "num_parameters": reducer.state.num_parameters,
        "tracked": int(model[1].num_batches_tracked),
        "backend": (reducer.backend, reducer.reason),
        "momentum": torch.stack(momenta),
    }


@pytest.mark.parametrize("wire", ["fp32", "bf16"])
@pytest.mark.parametrize("outer", OUTERS)
def test_ranks_are_identical_and_equal_the_weighted_mean_in_float64(run_ranks, wire, outer):
    results = run_ranks(several_windows, wire=wire, outer=outer)
    assert_identical(results)
    assert_identical(results, "momentum")
    assert all(result["backend"] == ("gloo", "all ranks are on the CPU") for result in results)
    # The counts are 0 + 3, 3 + 3, … on the fastest rank.
    assert [result["tracked"] for result in results] == [9, 9, 9]
    versions, num = results[0]["values"], results[0]["num_parameters"]
    for window in range(3):
        given = torch.stack([result["contributed"][window] for result in results]).double()
        weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
        base = versions[window].double()
        progress = given[:, :num] - base[:num]
        mean = (weights @ progress) / 6
        OUTERS[outer].update(mean, results[0]["momentum"][window].double())
        found = versions[window + 1].double()
        error = 4e-7
        if wire == "bf16":
            # The documented bound; an outer optimizer scales it.
            scale = {"mean": 1.0, "slow": 0.9, "nesterov": 0.7 * (1 + 0.9)}[outer]
            error = error + scale * 2**-7 * (weights @ progress.abs()) / 6
        assert ((found[:num] - (base[:num] + mean)).abs() <= error).all()
        # Buffers are averaged without weights and without bf16; equal and infinite ones stay as they are.
        buffers = given[:, num:]
        assert_close(found[num + 3 :], buffers[:, 3:].mean(0))
        assert torch.equal(found[num : num + 3].float(), torch.tensor([-torch.inf, 0.1, torch.inf]))


def test_the_divergence_is_the_distance_of_a_replica_from_the_mean(run_ranks):
    results = run_ranks(several_windows, wire="fp32", outer="mean")
    num = results[0]["num_parameters"]
    mean = results[0]["values"][1][:num].double()
    for result in results:
        replica = result["contributed"][0][:num].double()
        expected = float((replica - mean).norm() / mean.norm())
        assert result["reports"][0].divergence == pytest.approx(expected, rel=1e-4)


def large_window(rank):
    model = nn.Linear(1000, 999, bias=False)
    reducer = rank.start(model, wire=rank.arguments["wire"])
    rank.first()
    with torch.no_grad():
        model.weight += 0.01 * rank.index
    report = rank.reduce(1, [1, 1, 1])
    reducer.commit()
    return {"values": rank.values(), "num_bytes": report.num_bytes}


def test_bf16_on_the_wire_halves_the_bytes(run_ranks):
    full, half = (run_ranks(large_window, wire=wire)[0]["num_bytes"] for wire in ("fp32", "bf16"))
    assert full == pytest.approx(999_000 * 4 * 4 / 3, rel=1e-3)
    assert half == pytest.approx(full / 2, rel=1e-3)


def all_dtypes(rank):
    torch.manual_seed(rank.index)
    model = nn.Module()
    dtypes = [torch.bfloat16, torch.float16, torch.float32, torch.complex64]
    if rank.arguments["double"]:
        dtypes.append(torch.float64)
    model.tensors = nn.ParameterList([nn.Parameter(torch.randn(33, dtype=dtype)) for dtype in dtypes])
    model.scalar = nn.Parameter(torch.randn(()))
    model.transposed = nn.Parameter(torch.randn(4, 6).t())
    model.tied = model.scalar
    model.register_buffer("flags", torch.arange(3) == rank.index)
    reducer = rank.start(model)
    rank.first()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    given = rank.values()
    rank.reduce(1, [2, 1, 1])
    reducer.commit()
    assert torch.equal(rank.values(), reducer.consensus), "the model can hold the consensus"
    return {"values": rank.values(), "given": given, "flags": model.flags, "scalar": model.scalar.detach()}


@pytest.mark.parametrize("double", [False, True])
def test_all_dtypes_scalars_tied_and_transposed_parameters(run_ranks, double):
    results = run_ranks(all_dtypes, double=double)
    for key in ("values", "flags", "scalar"):
        assert_identical(results, key)
    given = torch.stack([result["given"] for result in results]).double()
    expected = (2 * given[0] + given[1] + given[2]) / 4
    found = results[0]["values"]
    assert found.dtype == (torch.float64 if double else torch.float32)
    sizes = [1 + 24, 33, 33, 33 + 66, *([33] if double else [])]
    tolerances = [4e-7, 2**-8, 2**-11, 4e-7, 1e-14]
    for ours, theirs, tolerance in zip(found.split(sizes), expected.split(sizes), tolerances):
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance / 10)


def empty_model(rank):
    reducer = rank.start(nn.ReLU(), wire=rank.arguments["wire"])
    rank.first()
    report = rank.reduce(1, [1, 1])
    reducer.commit()
    return reducer.version, report.divergence


@pytest.mark.parametrize("wire", ["fp32", "bf16"])
def test_a_model_without_parameters_can_meet(run_ranks, wire):
    assert run_ranks(empty_model, 2, wire=wire) == [(2, 0.0), (2, 0.0)]


def join_and_late(rank):
    """Rank 1 is late for window 1, and rank 2 joins in window 2."""
    model = make_model(rank.index)
    reducer = rank.start(model, outer=Nesterov())
    found = {}
    if rank.index < 2:
        rank.reduce(0, [0, 0], [0, -1], members=(0, 1))
        reducer.commit()
        found["start"] = rank.values()
        train(model, seed=rank.index)
        found["given"] = [rank.values()]
    if rank.index == 0:
        rank.reduce(1, [4], members=(0,))
        reducer.commit()
        found["alone"] = rank.values()
        train(model, seed=50)
        found["given"].append(rank.values())
    rank.barrier("window 2")
    # Rank 1 started from version 1, and rank 2 has none.
    rank.reduce(2, [3, 5, 0], [2, 1, -1])
    reducer.commit()
    found |= {"values": rank.values(), "momentum": reducer.outer_state()["momentum"]}
    found |= {"version": reducer.version, "num_parameters": reducer.state.num_parameters}
    found["tracked"] = int(model[1].num_batches_tracked)
    return found


def test_a_late_rank_adds_its_progress_and_a_joining_rank_receives_all(run_ranks):
    results = run_ranks(join_and_late)
    assert_identical(results)
    assert_identical(results, "momentum")
    assert [result["version"] for result in results] == [3, 3, 3]
    first, late = results[0], results[1]
    num = first["num_parameters"]
    start, alone = first["start"].double(), first["alone"].double()
    progress = (3 * (first["given"][1].double() - alone) + 5 * (late["given"][0].double() - start)) / 8
    momentum = (first["given"][0].double() - start)[:num]
    Nesterov().update(progress[:num], momentum)
    assert_close(first["values"][:num], (alone + progress)[:num], scale=4)
    assert_close(first["momentum"], momentum, scale=4)
    # Buffers: the mean of those that stepped, not of their progress.
    expected = (first["given"][1].double() + late["given"][0].double())[num + 3 :] / 2
    assert_close(first["values"][num + 3 :], expected)
    assert [result["tracked"] for result in results] == [6, 6, 6]


def only_a_part(rank):
    model = make_model(rank.index)
    reducer = rank.start(model, wire=rank.arguments["wire"])
    rank.first()
    start = rank.values()
    train(model, rank.index)
    contributed = rank.values()
    report = rank.reduce(1, [1, 2, 3], scale=0.5)
    reducer.commit()
    return {
        "values": rank.values(),
        "start": start,
        "contributed": contributed,
        "divergence": report.divergence,
        "num_parameters": reducer.state.num_parameters,
    }


@pytest.mark.parametrize("wire", ["fp32", "bf16"])
def test_a_scale_shortens_the_step_and_leaves_room_for_late_ranks(run_ranks, wire):
    results = run_ranks(only_a_part, wire=wire)
    assert_identical(results)
    num, start = results[0]["num_parameters"], results[0]["start"].double()
    progress = sum(
        weight * (result["contributed"].double() - start) for weight, result in zip((1, 2, 3), results)
    )
    assert_close(results[0]["values"][:num], (start + 0.5 * progress / 6)[:num], 1 if wire == "fp32" else 1e5)
    mean = (progress / 6)[:num]
    apart = ((results[1]["contributed"].double() - start)[:num] - mean).norm()
    new = results[0]["values"][:num].double().norm()
    assert results[1]["divergence"] == pytest.approx((apart / new).item(), rel=0.01), "from the whole mean"


def nobody_stepped(rank):
    model = make_model(rank.index)
    reducer = rank.start(model, outer=SlowMomentum())
    rank.first()
    train(model, rank.index)
    rank.reduce(1, [1, 1, 1])
    reducer.commit()
    before, momentum = rank.values(), reducer.outer_state()["momentum"].clone()
    train(model, rank.index)
    report = rank.reduce(2, [0, 0, 0])
    reducer.commit()
    assert torch.equal(momentum, reducer.outer_state()["momentum"])
    assert int(model[1].num_batches_tracked) == 3
    return {"values": rank.values(), "before": before, "divergence": report.divergence}


def test_without_contributions_the_version_stays_as_it_is(run_ranks):
    results = run_ranks(nobody_stepped)
    assert_identical(results)
    assert torch.equal(results[0]["values"], results[0]["before"])
    assert results[0]["divergence"] is None


def subset(rank):
    """Rank 2 is in the generation, and never enters a reduction of window 1."""
    model = make_model(rank.index)
    reducer = rank.start(model)
    rank.first()
    if rank.index < 2:
        for window in range(1, 40):
            train(model, seed=window + rank.index, steps=1)
            rank.reduce(window, [1, 1], members=(0, 1))
            reducer.commit()
    rank.barrier("after")
    # The group of all three was not used for many windows, so that all of them form it again.
    rank.reduce(40, [0, 0, 0], [40, 40, 1])
    reducer.commit()
    return {"values": rank.values(), "version": reducer.version}


def test_a_reduction_needs_only_its_members_not_the_whole_generation(run_ranks):
    results = run_ranks(subset)
    assert_identical(results)
    assert results[2]["version"] == 41


def waiting(rank):
    rank.start(nn.Linear(3, 3))
    rank.first()
    rank.barrier("ready")
    if rank.index == 2:
        time.sleep(0.5)
    report = rank.reduce(1, [1, 1, 1])
    return report.wait_ms, report.reduce_ms


def test_waiting_for_the_last_member_is_not_reducing(run_ranks):
    results = run_ranks(waiting)
    assert min(results[0][0], results[1][0]) > 200.0
    assert all(wait_ms >= 0.0 and reduce_ms > 0.0 for wait_ms, reduce_ms in results)
    assert results[2][0] < min(results[0][0], results[1][0])


def different_models(rank):
    rank.start(nn.Linear(3, 3 if rank.index else 4))
    try:
        rank.first()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def test_different_models_are_an_error_on_every_rank(run_ranks):
    results = run_ranks(different_models)
    assert all(name == "DistributedError" for name, _ in results)
    assert "rank 0 has parameters 16, and rank 1 has 12" in results[0][1]
    assert "rank 1 has parameters 12, and rank 0 has 16" in results[1][1]


def listening(rank):
    rank.start(nn.Linear(3, 3))
    rank.first()
    found = psutil.Process(os.getpid()).net_connections("inet")
    rank.barrier("seen")
    listeners = [each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN]
    return listeners, [each.raddr.ip for each in found if each.raddr]


def test_nothing_listens_beyond_loopback(start_ranks):
    ranks = start_ranks(listening)
    for listeners, peers in ranks.results():
        assert listeners, "gloo listens"
        assert {ip.removeprefix("::ffff:") for ip in [*listeners, *peers]} == {"127.0.0.1"}
    mine = [each for each in psutil.Process().net_connections("inet") if each.laddr.port == ranks.store.port]
    assert {each.laddr.ip for each in mine if each.status == psutil.CONN_LISTEN} == {"127.0.0.1"}

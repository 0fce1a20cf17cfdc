"""Ranks that are killed, stopped or missing in a reduction: nothing is half-written; survivors repeat it."""

import os
import signal
import threading
import time

import pytest
import torch
from torch import nn

from flodl.distributed.reduction import ReductionFailed, cancel

pytestmark = pytest.mark.slow


def begin(rank, *, size=1000, **settings):
    torch.manual_seed(rank.index)
    model = nn.Sequential(nn.Linear(size, size), nn.BatchNorm1d(1))
    reducer = rank.start(model, **settings)
    rank.first()
    with torch.no_grad():
        model[0].weight += 0.01 * torch.randn(size, size)
        model[1].running_mean += rank.index
    return model, reducer


def state_of(rank):
    return torch.cat([rank.values(), rank.reducer.consensus, rank.reducer.state.read_integers().float()])


def repeat(rank, before, *, members, weights, generation=2):
    """What survivors do: enter the next generation, and repeat the reduction."""
    assert torch.equal(state_of(rank), before), "a failed reduction changes nothing"
    given, base = rank.values(), rank.reducer.consensus.clone()
    rank.enter(generation, members)
    rank.reduce(1, weights, members=members, generation=generation, attempt=1, donor=members[0])
    assert torch.equal(state_of(rank), before)
    rank.reducer.commit()
    assert torch.equal(rank.values(), rank.reducer.consensus)
    return {"given": given, "base": base, "values": rank.values(), "version": rank.reducer.version}


def assert_mean(results, weights, wire="fp32"):
    """The survivors agree, on the mean of what they had."""
    for result in results[1:]:
        assert torch.equal(result["values"], results[0]["values"])
    base = results[0]["base"].double()
    shares = [weight / sum(weights) for weight in weights]
    progress = [share * (result["given"].double() - base) for share, result in zip(shares, results)]
    allowed = 4e-7 + (2**-7 if wire == "bf16" else 0.0) * sum(each.abs() for each in progress)
    apart = (results[0]["values"].double() - (base + sum(progress))).abs()
    # The last two are buffers, whose mean has no weights.
    assert (apart <= allowed)[:-2].all()
    assert all(result["version"] == 2 for result in results)


def killed_in_the_reduction(rank):
    _, reducer = begin(rank, wire=rank.arguments["wire"])
    before = state_of(rank)
    rank.barrier("ready")
    if rank.index == rank.arguments["killed"]:
        delay_s = rank.arguments["delay_s"]
        threading.Thread(target=lambda: (time.sleep(delay_s), os.kill(os.getpid(), signal.SIGKILL))).start()
    failed = ""
    try:
        rank.reduce(1, [1, 2, 3])
    except ReductionFailed as error:
        failed = str(error)
    if rank.index == rank.arguments["killed"]:
        time.sleep(60.0)
    members = tuple(index for index in range(3) if index != rank.arguments["killed"])
    assert reducer.version == 1
    return {
        "failed": failed,
        **repeat(rank, before, members=members, weights=[index + 1 for index in members]),
    }


@pytest.mark.parametrize("wire", ["fp32", "bf16"])
@pytest.mark.parametrize(("killed", "delay_s"), [(2, 0.0), (0, 0.002), (1, 0.005), (2, 0.01)])
def test_survivors_of_a_kill_repeat_the_reduction_with_what_they_have(run_ranks, killed, delay_s, wire):
    """A survivor may have completed it: it drops the result, because not all members have it."""
    results = run_ranks(killed_in_the_reduction, killed=killed, delay_s=delay_s, wire=wire)
    assert results.pop(killed) is None
    members = [index for index in range(3) if index != killed]
    assert_mean(results, [index + 1 for index in members], wire)
    for result in results:
        assert not result["failed"] or "could not reduce window 1" in result["failed"]


def never_comes(rank):
    begin(rank)
    rank.barrier("ready")
    before = state_of(rank)
    # In generation 2, the members have to form a new group.
    rank.enter(2, (0, 1, 2))
    if rank.index == 2:
        rank.store.set("killed", str(os.getpid()))
        time.sleep(60.0)
    timeout_s = rank.arguments["timeout_s"]
    with pytest.raises(ReductionFailed) as caught:
        rank.reduce(1, [1, 1, 1], generation=2, timeout_s=timeout_s)
    found = repeat(rank, before, members=(0, 1), weights=[1, 1], generation=3)
    return {"failed": str(caught.value), "ranks": caught.value.ranks, **found}


def test_a_member_that_does_not_come_in_time_is_named(start_ranks):
    ranks = start_ranks(never_comes, timeout_s=1.0)
    results = [ranks.result(index) for index in (0, 1)]
    assert_mean(results, [1, 1])
    for result in results:
        assert result["ranks"] == (2,)
        assert "ranks [2] did not join in time" in result["failed"]


def test_canceling_a_generation_frees_members_that_wait_for_a_lost_one(start_ranks):
    ranks = start_ranks(never_comes, timeout_s=100.0)
    ranks.wait_for("killed")
    ranks.kill(2)
    cancel(ranks.store, 2)
    results = [ranks.result(index) for index in (0, 1)]
    assert_mean(results, [1, 1])
    assert all("generation 2 was canceled, because a member is lost" in each["failed"] for each in results)


def stopped(rank):
    begin(rank)
    before = state_of(rank)
    rank.store.set(f"pid{rank.index}", str(os.getpid()))
    if rank.index == 2:
        rank.store.set("stop me", "1")
        while not rank.store.check(["continue"]):
            time.sleep(0.001)
        # A zombie: the others are in another generation by now.
        with pytest.raises(ReductionFailed) as caught:
            rank.reduce(1, [1, 1, 1], timeout_s=1.0)
        assert torch.equal(state_of(rank), before)
        # It cannot take part before it enters the published generation.
        with pytest.raises(ReductionFailed, match="belongs to generation 2"):
            rank.reduce(1, [1, 1, 1], generation=2)
        with pytest.raises(ReductionFailed, match="has failed or was aborted"):
            rank.reduce(1, [1, 1, 1])
        return {"failed": str(caught.value)}
    rank.barrier("stopped", 3)
    with pytest.raises(ReductionFailed) as caught:
        rank.reduce(1, [1, 1, 1], timeout_s=0.5)
    found = repeat(rank, before, members=(0, 1), weights=[1, 1])
    return {"failed": str(caught.value), **found}


def test_a_stopped_rank_costs_the_timeout_and_is_refused_when_it_continues(start_ranks):
    ranks = start_ranks(stopped)
    ranks.wait_for("stop me")
    ranks.kill(2, signal.SIGSTOP)
    ranks.store.add("barrier/stopped", 1)
    results = [ranks.result(index) for index in (0, 1)]
    assert_mean(results, [1, 1])
    ranks.store.set("continue", "1")
    ranks.kill(2, signal.SIGCONT)
    assert "could not reduce window 1" in ranks.result(2)["failed"]


def not_finite(rank):
    model, _ = begin(rank)
    if rank.index == 1:
        with torch.no_grad():
            model[0].bias[3] = torch.nan
    before = state_of(rank)
    with pytest.raises(ReductionFailed) as caught:
        rank.reduce(1, [1, 1, 1])
    assert torch.equal(state_of(rank).nan_to_num(7.0), before.nan_to_num(7.0))
    # The coordinator refuses its progress: it drops it, and receives only.
    if rank.index == 1:
        rank.reducer.drop()
        assert torch.equal(rank.values(), rank.reducer.consensus)
    rank.enter(2, (0, 1, 2))
    rank.reduce(1, [1, 0, 1], generation=2)
    rank.reducer.commit()
    return {"failed": str(caught.value), "ranks": caught.value.ranks, "values": rank.values()}


def test_weights_that_are_not_finite_fail_on_every_rank_with_the_name_of_the_rank(run_ranks):
    results = run_ranks(not_finite)
    for result in results:
        assert result["ranks"] == (1,)
        assert "the weights of ranks [1] contain NaN or infinity" in result["failed"]
        assert result["values"].isfinite().all()
        assert torch.equal(result["values"], results[0]["values"])


def infinite_constant(rank):
    torch.manual_seed(rank.index)
    model = nn.Linear(3, 3)
    with torch.no_grad():
        model.bias[1] = -torch.inf
    rank.start(model)
    rank.first()
    with torch.no_grad():
        model.weight += rank.index
    rank.reduce(1, [1, 1, 1])
    rank.reducer.commit()
    return rank.values()


def test_a_parameter_with_infinite_constants_is_averaged(run_ranks):
    results = run_ranks(infinite_constant)
    assert results[0].isinf().tolist() == [False] * 10 + [True, False]
    assert all(torch.equal(each, results[0]) for each in results)


def changed_since(rank):
    """A repeated reduction contributes what the first attempt did."""
    model, reducer = begin(rank, keep_local=True, size=10)
    reducer.capture(4)
    given = rank.values()
    rank.reduce(1, [4, 4, 4])
    with torch.no_grad():
        model[0].weight += 100.0
    rank.enter(2, (0, 1, 2))
    rank.reduce(1, [4, 4, 4], generation=2, attempt=1)
    reducer.commit()
    return {"given": given, "values": reducer.consensus, "local": rank.values()}


def test_an_uncommitted_result_is_dropped_and_the_same_contribution_is_sent_again(run_ranks):
    results = run_ranks(changed_since)
    mean = torch.stack([result["given"].double() for result in results]).mean(0)
    for result in results:
        torch.testing.assert_close(result["values"].double(), mean, rtol=4e-7, atol=4e-8)
        torch.testing.assert_close(result["local"][:100], result["values"][:100] + 100.0, rtol=0, atol=1e-4)


def resent(rank):
    begin(rank, size=10)
    first = rank.reduce(1, [1, 1, 1])
    # A supervisor that restarted sends its last command again.
    assert rank.reduce(1, [1, 1, 1]) is first
    rank.reducer.commit()
    return rank.reducer.version


def test_a_command_that_is_sent_again_returns_the_same_report(run_ranks):
    assert run_ranks(resent) == [2, 2, 2]


def aborted(rank):
    begin(rank)
    rank.enter(2, (0, 1, 2))
    if rank.index == 2:
        return None
    threading.Timer(0.2, rank.reducer.abort).start()
    with pytest.raises(ReductionFailed) as caught:
        rank.reduce(1, [1, 1, 1], generation=2, timeout_s=100.0)
    return str(caught.value)


def test_abort_frees_a_rank_that_waits_for_members(run_ranks):
    results = run_ranks(aborted)
    assert all("generation 2 was canceled" in failed for failed in results[:2])

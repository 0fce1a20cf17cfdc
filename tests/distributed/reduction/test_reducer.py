"""A reducer without other members: nothing changes, bit for bit; wrong calls are errors."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from flodl.core.errors import DistributedError
from flodl.distributed.coordination import Reduce
from flodl.distributed.reduction import FlatState, Mean, Nesterov, Reducer, ReductionFailed, SlowMomentum


def make(seed=0, **settings):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    reducer = Reducer(FlatState.of(model), **settings)
    reducer.rebuild(None, 1, 0, (0,), 1.0)
    return model, reducer


def command(window, weight=1, base=None, *, members=(0,), generation=1, donor=0, attempt=0):
    num = len(members)
    bases = (window if base is None else base,) * num
    return Reduce(window, generation, attempt, members, (weight,) * num, bases, donor, 1000.0, "test")


def meet(reducer, window, weight=1, **settings):
    report = reducer.reduce(command(window, weight, **settings))
    reducer.commit()
    return report


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


def bits(model):
    return [tensor.clone() for tensor in model.state_dict().values()]


@pytest.mark.parametrize("keep_local", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_world_of_one_is_the_plain_loop_bit_for_bit(dtype, keep_local):
    def run(with_reducer):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        model[0].to(dtype)
        model[0].register_forward_pre_hook(lambda _, given: (given[0].to(dtype),))
        model[0].register_forward_hook(lambda _, given, found: found.float())
        model[2].weight.data[0, 0] = -0.0
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        reducer = Reducer(FlatState.of(model), keep_local=keep_local)
        reducer.rebuild(None, 1, 0, (0,), 1.0)
        if with_reducer:
            meet(reducer, 0, 0)
        for window in range(1, 5):
            train(model, optimizer, 3)
            if with_reducer:
                if keep_local:
                    reducer.capture(3)
                report = reducer.reduce(command(window, 3))
            if keep_local:
                train(model, optimizer, 2)
            if with_reducer:
                reducer.commit()
                assert (report.divergence, report.num_bytes, report.wait_ms) == (0.0, 0, 0.0)
                assert reducer.version == window + 1
            if with_reducer and not keep_local:
                assert torch.equal(reducer.state.read(reducer.state.empty()), reducer.consensus)
        return bits(model)

    for ours, theirs in zip(run(True), run(False)):
        assert torch.equal(ours, theirs)
        assert torch.equal(torch.signbit(ours), torch.signbit(theirs))


def test_the_first_rank_brings_its_weights_as_the_version_of_the_window():
    model, reducer = make()
    assert reducer.version == -1
    with pytest.raises(DistributedError, match="does not hold a version yet"):
        reducer.consensus  # noqa: B018
    before = bits(model)
    assert meet(reducer, 5, 0).divergence is None
    assert reducer.version == 6
    assert all(torch.equal(*pair) for pair in zip(bits(model), before))


@pytest.mark.parametrize("outer", [SlowMomentum(0.5, 0.8), Nesterov()])
def test_an_outer_optimizer_acts_on_a_single_member(outer):
    model, reducer = make(outer=outer)
    meet(reducer, 0, 0)
    consensus = reducer.consensus.double().clone()
    num = reducer.state.num_parameters
    momentum = torch.zeros(num, dtype=torch.float64)
    for window in range(1, 4):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        progress = reducer.state.read(reducer.state.empty()).double()[:num] - consensus[:num]
        outer.update(progress, momentum)
        meet(reducer, window)
        torch.testing.assert_close(reducer.consensus[:num].double(), consensus[:num] + progress)
        torch.testing.assert_close(reducer.outer_state()["momentum"].double(), momentum)
        assert torch.equal(reducer.state.read(reducer.state.empty()), reducer.consensus)
        consensus = reducer.consensus.double().clone()


@pytest.mark.parametrize("keep_local", [False, True])
def test_a_scale_leaves_room_for_ranks_that_are_late(keep_local):
    model, reducer = make(keep_local=keep_local)
    meet(reducer, 0, 0)
    start = model[0].weight.detach().clone()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    trained = model[0].weight.detach().clone()
    if keep_local:
        reducer.capture(2)
    reducer.reduce(replace(command(1, 2), scale=0.25))
    reducer.commit()
    torch.testing.assert_close(model[0].weight.detach(), start + 0.25 * (trained - start))


def test_a_run_continues_from_a_save_point_with_its_outer_state():
    model, reducer = make(outer=Nesterov())
    other, resumed = make(seed=1, outer=Nesterov())
    meet(reducer, 0, 0)
    for window in range(1, 4):
        with torch.no_grad():
            model[0].weight += window
        meet(reducer, window)
        if window == 2:
            for mine, saved in zip(
                [*other.parameters(), *other.buffers()],
                reducer.state.tensors(reducer.consensus, reducer.integers),
            ):
                mine.data.copy_(saved)
            resumed.begin(reducer.version, reducer.outer_state())
            with torch.no_grad():
                other[0].weight += 3
    meet(resumed, 3)
    assert torch.equal(resumed.consensus, reducer.consensus)
    assert torch.equal(resumed.outer_state()["momentum"], reducer.outer_state()["momentum"])


def test_dropping_progress_restores_the_consensus():
    model, reducer = make()
    meet(reducer, 0, 0)
    before = bits(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    reducer.drop()
    assert all(torch.equal(*pair) for pair in zip(bits(model), before))


def test_the_memory_of_vectors_is_reused():
    _, reducer = make()
    meet(reducer, 0, 0)
    seen = set()
    for window in range(1, 10):
        meet(reducer, window)
        seen.add(reducer.consensus.data_ptr())
    assert len(seen) <= 3


def test_several_arrivals_before_a_commit_are_contributed_one_by_one():
    model, reducer = make(keep_local=True)
    meet(reducer, 0, 0)
    values = []
    for steps in (2, 5):
        with torch.no_grad():
            model[0].weight += steps
        reducer.capture(steps)
        values.append(reducer.state.read(reducer.state.empty()))
    meet(reducer, 1, 2)
    assert torch.equal(reducer.consensus, values[0])
    meet(reducer, 2, 3)
    assert torch.equal(reducer.consensus, values[1])
    with pytest.raises(DistributedError, match=r"no snapshot after 4 steps; it has them after \[\]"):
        reducer.reduce(command(3, 4))


def test_a_commit_needs_a_reduction():
    _, reducer = make()
    with pytest.raises(DistributedError, match=r"commit\(\) needs the result of a reduction"):
        reducer.commit()
    meet(reducer, 0, 0)
    with pytest.raises(DistributedError, match=r"commit\(\) needs the result of a reduction"):
        reducer.commit()


def test_a_command_that_does_not_fit_what_the_rank_holds_is_an_error():
    _, reducer = make()
    meet(reducer, 0, 0)
    with pytest.raises(DistributedError, match="expects rank 0 to hold version 7; it holds 1"):
        reducer.reduce(command(7))
    with pytest.raises(
        ReductionFailed, match=r"belongs to generation 2 .* and this is rank 0 in generation 1"
    ):
        reducer.reduce(command(1, generation=2))
    with pytest.raises(ReductionFailed, match=r"members \(3,\), and this is rank 0"):
        reducer.reduce(command(1, members=(3,)))
    with pytest.raises(DistributedError, match="rank 0 is not in generation 2"):
        reducer.rebuild(None, 2, 0, (1, 2), 1.0)
    reducer.rebuild(None, 2, 0, (0, 1), 1.0)
    with pytest.raises(DistributedError, match="several members need the store"):
        reducer.reduce(command(1, generation=2, members=(0, 1)))


def test_the_default_outer_optimizer_is_the_mean():
    assert make()[1].outer == Mean()
    _, reducer = make()
    meet(reducer, 0, 0)
    assert reducer.outer_state() == {}

"""Carried state in the parts of control nodes: one sample never continues the state of another."""

import pytest
import torch
from torch import nn

from flodl import ArgmaxSelector, FlowBuilder, LearnedHalt, SoftmaxRouter, ThresholdHalt
from flodl.core import StateError

from ..nodes import Double, Remember

X = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])


def carrying():
    return FlowBuilder(Remember()).using("memory").tag("memory").build()


def nested():
    return nn.Sequential(Double(), FlowBuilder(carrying()).build())


class Sequence(nn.Module):
    """Run a graph with state over a sequence, from its initial state."""

    def __init__(self):
        super().__init__()
        self.step = carrying()

    def forward(self, x):
        self.step.reset_state()
        return torch.stack([self.step(x) for _ in range(2)]).sum(0)


def by_sign(value):
    return (value[:, 0] > 2).long()


@pytest.mark.parametrize("make", [carrying, nested])
def test_a_switch_per_sample_rejects_branches_with_state(make):
    model = FlowBuilder().switch(by_sign, [Double(), make()]).build()
    with pytest.raises(
        StateError, match=r"'switch_1.branch_1': the branch carries 'memory' from call to call"
    ):
        model(X)
    with pytest.raises(StateError, match="Use masked=True"):
        FlowBuilder().switch(ArgmaxSelector(2, 2), [make(), Double()]).build(example=X)


def test_a_switch_for_the_batch_carries_the_state_of_the_branch_that_runs():
    model = FlowBuilder().switch(lambda v: torch.tensor(1), [Double(), carrying()]).build()
    model(X)
    assert torch.equal(model(X), 2 * X)
    assert torch.equal(FlowBuilder().switch(by_sign, [carrying(), Double()]).build()(X[:1]), X[:1])


def test_a_masked_switch_carries_a_state_for_every_sample():
    model = FlowBuilder().switch(by_sign, [carrying(), Double()], masked=True).build()
    model(X)
    assert torch.equal(model(X), torch.stack([2 * X[0], 2 * X[1], 2 * X[2]]))


@pytest.mark.parametrize("make", [carrying, nested])
def test_a_masked_loop_rejects_a_body_with_state(make):
    with pytest.raises(StateError, match="the body carries 'memory', and masked=True runs all iterations"):
        FlowBuilder().loop_body(make()).while_cond(ThresholdHalt(5), 4, masked=True)


@pytest.mark.parametrize("condition", [ThresholdHalt(5, per_sample=True), lambda state: state[:, 0] > 5])
def test_a_loop_that_stops_samples_one_by_one_rejects_a_body_with_state(condition):
    model = FlowBuilder().loop_body(carrying()).while_cond(condition, 4).build()
    with pytest.raises(
        StateError, match=r"'loop_1.body': the body carries 'memory', and samples stop one by one"
    ):
        model(X)
    assert model(X[:1]).shape == (1, 2)  # one sample is the whole batch


def test_a_loop_that_stops_the_batch_or_learns_to_stop_accepts_a_body_with_state():
    for condition, masked in [(ThresholdHalt(5), False), (LearnedHalt(2), False), (LearnedHalt(2), True)]:
        model = FlowBuilder().loop_body(carrying()).until_cond(condition, 3, masked=masked).build()
        assert model(X).shape == X.shape


def test_a_map_over_single_rows_rejects_a_body_with_state():
    for finish in (lambda b: b.each(), lambda b: b.slices(2)):
        with pytest.raises(StateError, match="the body of the map carries 'memory'"):
            finish(FlowBuilder().map(carrying()))


def test_a_batched_map_carries_a_state_for_every_row():
    model = FlowBuilder().map(carrying(), batched=True).each().build()
    model(X)
    assert torch.equal(model(X), 2 * X)


def test_a_module_that_resets_its_state_itself_is_accepted():
    assert torch.equal(FlowBuilder().map(Sequence()).each().build()(X), 3 * X)
    assert FlowBuilder().switch(by_sign, [Sequence(), Double()]).build()(X).shape == X.shape


def test_the_experts_of_a_gate_carry_state():
    model = FlowBuilder().gate(SoftmaxRouter(2, 2), [carrying(), carrying()]).build()
    model(X)
    assert torch.allclose(model(X), 2 * X)

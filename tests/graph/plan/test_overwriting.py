"""A node may not overwrite a value that is read again: found at build, or in the first calls."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flodl import ArgmaxSelector, FlowBuilder, SoftmaxRouter, ThresholdHalt
from flodl.core import BuildError

X = torch.tensor([[1.0, -2.0], [-3.0, 4.0]])


class Activated(nn.Module):
    """Write into the input in the forward."""

    def __init__(self):
        super().__init__()
        self.act = nn.ReLU(inplace=True)
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(self.act(x))


class Noise(nn.Module):
    """Write into the input in training only."""

    def forward(self, x):
        return x.mul_(2) if self.training else x * 1


def sequential():
    return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 2))


def relu_(value):
    return F.relu(value, inplace=True)


def scale_(value):
    return value.mul_(2)


def entry():
    return FlowBuilder(nn.Linear(2, 2))


def never(state):
    return state.flatten(1).sum(1) * 0 - 1


def in_a_graph(part):
    return entry().also(FlowBuilder(part).through(nn.Linear(2, 2)).build())


def in_a_masked_switch(part):
    return entry().switch(lambda v: (v[:, 0] > 0).long(), [part, nn.Linear(2, 2)], masked=True)


def in_a_learned_switch(part):
    selector = ArgmaxSelector(2, 2, gradient="straight_through")
    return entry().switch(selector, [part, nn.Linear(2, 2)])


def in_a_gate(part):
    return entry().gate(SoftmaxRouter(2, 2), [part, nn.Linear(2, 2)])


def in_a_loop_whose_input_is_read_later(part):
    return entry().tag("t").loop_body(part).for_n(2).through(lambda s, *, t: s + t).using("t")


def in_a_loop_that_stops_samples(part):
    return entry().loop_body(part).while_cond(never, 3)


def in_a_masked_loop(part):
    return entry().loop_body(part).while_cond(ThresholdHalt(1e9), 3, masked=True)


def in_a_map(part):
    return entry().also(FlowBuilder().map(part).each().build())


def before_the_next_call(part):
    return FlowBuilder(lambda x, *, m: x if m is None else x + m).using("m").tag("m").through(part)


PLACES = [
    (in_a_graph, "graph_1", "'add_1'"),
    (in_a_masked_switch, "switch_1.branch_0", "branch"),
    (in_a_learned_switch, "switch_1.branch_0", "branch"),
    (in_a_gate, "gate_1.expert_0", "expert"),
    (in_a_loop_whose_input_is_read_later, "loop_1", "'lambda_1'"),
    (in_a_loop_that_stops_samples, "loop_1.body", "the loop, for samples that have finished"),
    (in_a_masked_loop, "loop_1.body", "the loop, for samples that have finished"),
    (in_a_map, "graph_1", "'add_1'"),
    (before_the_next_call, "", "the next call"),
]


@pytest.mark.parametrize("make", [sequential, Activated, lambda: relu_, lambda: scale_])
@pytest.mark.parametrize(("place", "path", "reader"), PLACES)
def test_a_part_that_overwrites_a_value_that_is_read_again_raises(place, path, reader, make):
    # With gradients, torch itself rejects some of these, such as a write into a row of a map.
    with pytest.raises(BuildError) as caught, torch.no_grad():
        place(make()).build()(X)
    assert caught.value.path.startswith(path)
    assert "writes into its input (in" in str(caught.value)
    assert reader in caught.value.message


@pytest.mark.parametrize(("place", "path", "reader"), [*PLACES[:5], *PLACES[6:]])
def test_a_module_of_torch_that_overwrites_is_rejected_at_build(place, path, reader):
    with pytest.raises(BuildError, match="inplace=True"):
        place(sequential()).build()


@pytest.mark.parametrize("place", [place for place, _, _ in PLACES])
def test_a_part_that_returns_new_values_is_accepted(place):
    model = place(nn.Sequential(nn.ReLU(), nn.Linear(2, 2))).build()
    assert model(X).shape == X.shape


def test_the_example_of_build_finds_a_function_that_overwrites():
    with pytest.raises(BuildError, match="'relu__1': the node writes into its input"):
        entry().also(relu_).build(example=X)


def test_the_router_selector_and_condition_may_not_overwrite_the_stream():
    def router(value):
        return value.mul_(2).softmax(-1)

    def selector(value):
        return value.mul_(2).sum() > 0

    for builder, path in [
        (entry().gate(router, [nn.Linear(2, 2), nn.Linear(2, 2)]), "gate_1.router"),
        (entry().switch(selector, [nn.Linear(2, 2), nn.Linear(2, 2)]), "switch_1.selector"),
        (entry().loop_body(nn.Linear(2, 2)).while_cond(selector, 2), "loop_1.condition"),
    ]:
        with pytest.raises(BuildError) as caught, torch.no_grad():
            builder.build()(X)
        assert caught.value.path == path


def test_a_loop_body_may_not_overwrite_a_reference_that_the_next_iteration_reads():
    def body(state, *, goal):
        return state + goal.mul_(2)

    model = FlowBuilder().input("goal").loop_body(body).for_n(2).using("goal").build()
    with pytest.raises(BuildError, match="read by the next iteration"):
        model(X, goal=X.clone())


def test_a_write_into_a_view_of_the_value_is_found():
    def first_column(value):
        value[:, 0] = 0
        return value

    model = entry().tag("all").through(lambda v: v.view(2, 2)).through(first_column)
    with pytest.raises(BuildError, match=r"'first_column_1'.*also read by 'lambda_2'"):
        model.through(lambda s, *, all: s + all).using("all").build()(X)


def test_a_part_that_overwrites_in_training_only_is_found_in_training():
    model = entry().also(Noise()).build().eval()
    model(X)
    with pytest.raises(BuildError, match="'noise_1': the node writes into its input"):
        model.train()(X)


def test_a_branch_that_is_chosen_later_is_checked():
    model = entry().also(FlowBuilder().switch(lambda v: chosen, [nn.Linear(2, 2), relu_]).build()).build()
    chosen = 0
    model(X)
    chosen = 1
    with pytest.raises(BuildError, match="'graph_1'"):
        [model(X) for _ in range(2)]


def test_a_module_that_is_assigned_later_is_checked():
    model = entry().also(nn.Linear(2, 2)).build()
    model(X)
    model.linear_2 = Activated()
    with pytest.raises(BuildError, match="'linear_2'"):
        model(X)


def test_writes_into_values_that_nothing_reads_later_are_accepted(capsys):
    model = (
        entry().through(relu_).split([nn.Linear(2, 2), nn.Linear(2, 2)]).merge("add").through(relu_).build()
    )
    last = [nn.Linear(2, 2), Activated()]
    gate = entry().gate(SoftmaxRouter(2, 2), last).build()
    loop = entry().loop_body(Activated()).for_n(3).build()
    with torch.no_grad():
        gate(X)
    for graph in (model, loop):
        graph(X).sum().backward()
    assert capsys.readouterr().err == ""


def test_a_tag_that_a_function_overwrites_is_noted_once(capsys):
    model = entry().tag("before").through(relu_).build()
    model(X)
    model(X)
    assert capsys.readouterr().err.count("tagged('before') returns the overwritten value") == 1


def test_inference_mode_copies_and_compilation_are_not_disturbed():
    model = entry().also(nn.Linear(2, 2)).loop_body(nn.Linear(2, 2)).for_n(2).build()
    with torch.inference_mode():
        inferred = model(X)
    copied = copy.deepcopy(model)
    exported = torch.export.export(copied, (X,)).module()(X)
    assert torch.equal(model(X), inferred)
    assert torch.equal(copied(X), inferred)
    assert torch.allclose(exported, inferred)


def test_a_checked_call_computes_the_same_as_later_calls_and_leaves_no_trace():
    model = in_a_masked_loop(nn.Linear(2, 2)).build()
    before = model.structural_hash
    first = model(X)
    assert torch.equal(first, model(X))
    assert model.structural_hash == before
    assert not model.loop_1.is_watched

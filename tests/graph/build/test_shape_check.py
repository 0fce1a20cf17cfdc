"""The shape check at build time: the failing node is named, nothing is computed, nothing changes."""

import copy

import pytest
import torch
from torch import Tensor, nn

from flodl import ArgmaxSelector, FixedSelector, FlowBuilder, LearnedHalt, SoftmaxRouter, ThresholdHalt
from flodl.core import InputError, LoopError, RouteError, ShapeError, set_verbosity

from ..nodes import Blend, Double, Remember, Triple

EXAMPLE = torch.zeros(4, 8)


def wrong():
    return nn.Linear(5, 8)


def test_the_message_says_what_arrived_where_and_what_to_do():
    with pytest.raises(ShapeError) as caught:
        FlowBuilder(nn.Linear(8, 6)).through(nn.Linear(5, 2)).tag("head").build(example=EXAMPLE)
    assert caught.value.path == "head"
    assert "(Linear(in_features=5, out_features=2, bias=True), given (4, 6))" in str(caught.value)
    assert str(caught.value).endswith("Change the node to accept this shape, or fix the node before it.")


NESTED = {
    "through": (lambda node: FlowBuilder(node), "linear_1"),
    "also": (lambda node: FlowBuilder().also(node), "linear_1"),
    "fork": (lambda node: FlowBuilder().fork(node).tag("side"), "side"),
    "split": (lambda node: FlowBuilder().split([Double(), node]).merge("add"), "linear_1"),
    "loop": (lambda node: FlowBuilder().loop_body(node).for_n(2), "loop_1.body"),
    "condition": (lambda node: FlowBuilder().loop_body(Double()).while_cond(node, 2), "loop_1.condition"),
    "learned halt": (
        lambda node: FlowBuilder().loop_body(node).until_cond(LearnedHalt(8), 2),
        "loop_1.body",
    ),
    "router": (lambda node: FlowBuilder().gate(node, [Double(), Triple()]), "gate_1.router"),
    "expert": (lambda node: FlowBuilder().gate(SoftmaxRouter(8, 2), [Double(), node]), "gate_1.expert_1"),
    "selector": (lambda node: FlowBuilder().switch(node, [Double(), Triple()]), "switch_1.selector"),
    "branch": (
        lambda node: FlowBuilder().switch(ArgmaxSelector(8, 2), [Double(), node]),
        "switch_1.branch_1",
    ),
    "fixed branch": (
        lambda node: FlowBuilder().switch(FixedSelector(1), [Double(), node]),
        "switch_1.branch_1",
    ),
    "batch branch": (
        lambda node: FlowBuilder().switch(lambda x: x.amax() > 0, [Double(), node]),
        "switch_1.branch_1",
    ),
    "map": (lambda node: FlowBuilder().map(node).each(), "map_1.body"),
    "merge": (
        lambda node: FlowBuilder().split([Double(), nn.Linear(8, 3)]).merge("add").through(node),
        "merge_1",
    ),
}


@pytest.mark.parametrize(("place", "path"), NESTED.values(), ids=NESTED.keys())
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_failing_node_is_named_at_any_depth(place, path, depth):
    flow = place(wrong())
    for level in range(depth):
        flow = FlowBuilder(nn.LayerNorm(8)).through(flow.label(f"level_{level}").build())
        path = f"level_{level}.{path}"
    with pytest.raises(ShapeError) as caught:
        flow.build(example=EXAMPLE)
    assert caught.value.path == path


@pytest.mark.parametrize(
    "flow",
    [
        lambda: FlowBuilder(nn.LSTM(8, 3, num_layers=2, batch_first=True)).through(lambda out: out[0]),
        lambda: FlowBuilder(nn.GRU(8, 3)).through(lambda out: out[0]),
        lambda: FlowBuilder(nn.BatchNorm1d(8)).through(nn.Dropout(0.5)),
        lambda: FlowBuilder().loop_body(nn.Linear(8, 8)).while_cond(ThresholdHalt(1.0), 3),
        lambda: FlowBuilder().loop_body(nn.Linear(8, 8)).while_cond(ThresholdHalt(1.0, per_sample=True), 3),
        lambda: FlowBuilder().loop_body(nn.Linear(8, 8)).until_cond(LearnedHalt(8), 3),
        lambda: FlowBuilder().switch(ArgmaxSelector(8, 2), [nn.Linear(8, 3), nn.Linear(8, 3)]),
        lambda: FlowBuilder().switch(lambda x: (x.amax() > 0).long(), [nn.Linear(8, 3), nn.Linear(8, 5)]),
        lambda: FlowBuilder().gate(SoftmaxRouter(8, 2), [nn.Linear(8, 3), nn.Linear(8, 3)]),
        lambda: FlowBuilder().map(nn.Linear(2, 3)).slices(4),
        lambda: FlowBuilder(Remember()).using("memory", init="zeros").tag("memory"),
        lambda: FlowBuilder(Remember()).using("memory", init=nn.Parameter(torch.zeros(8))).tag("memory"),
        lambda: FlowBuilder(lambda x: x.long()).through(nn.Embedding(10, 3)),
    ],
)
def test_a_valid_graph_passes(flow):
    assert isinstance(flow().build(example=EXAMPLE)(EXAMPLE), Tensor)


class WithTensor(nn.Module):
    """Hold a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.full((8,), 2.0)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.scale


def test_a_plain_tensor_attribute_is_followed():
    node = WithTensor()
    assert torch.equal(FlowBuilder(node).build(example=EXAMPLE)(EXAMPLE), EXAMPLE)
    with pytest.raises(ShapeError, match="at 'withtensor_1'"):
        FlowBuilder(nn.Linear(8, 3)).through(node).build(example=EXAMPLE)


def test_the_check_does_not_change_the_graph():
    node, norm = WithTensor(), nn.BatchNorm1d(8)
    before = copy.deepcopy(norm.state_dict())
    torch.manual_seed(0)
    seeded = torch.random.get_rng_state()
    flow = FlowBuilder(node).through(norm).through(nn.Dropout(0.5)).loop_body(Double()).for_n(2)
    model = flow.through(Remember()).using("memory").tag("memory").build(example=EXAMPLE)
    assert node.calls == 0
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())
    assert all(tensor.device.type == "cpu" for tensor in model.state_dict().values())
    assert model.tagged("memory") is None
    assert torch.equal(torch.random.get_rng_state(), seeded)
    assert node.scale.device.type == "cpu"


def test_a_nested_graph_that_was_called_before_is_checked_from_its_first_call():
    inner = FlowBuilder(Remember()).using("memory").tag("memory").build()
    inner(torch.zeros(7, 8))
    model = FlowBuilder(inner).build(example=EXAMPLE)
    assert model.graph_1.tagged("memory").shape == (7, 8)


@pytest.mark.parametrize(
    "example",
    [
        (EXAMPLE, EXAMPLE),
        {"input": EXAMPLE, "ctx": EXAMPLE},
    ],
)
def test_several_inputs_come_as_a_tuple_or_by_name(example):
    flow = FlowBuilder().input("ctx").through(Blend()).using("ctx")
    assert flow.build(example=example)(EXAMPLE, ctx=EXAMPLE).shape == (4, 8)
    with pytest.raises(ShapeError, match="at 'blend_1'"):
        flow.build(example=(EXAMPLE, torch.zeros(4, 7)))


def test_an_example_by_name_needs_the_stream():
    with pytest.raises(InputError) as caught:
        FlowBuilder().input("ctx").through(Blend()).using("ctx").build(example={"ctx": EXAMPLE})
    assert str(caught.value) == "the example names 'ctx'. Pass the stream as 'input'."


def test_errors_of_routers_and_loops_are_raised_unchanged():
    with pytest.raises(RouteError, match="at 'gate_1': the router gives 3 weights for 2 experts"):
        FlowBuilder().gate(nn.Linear(8, 3), [Double(), Triple()]).build(example=EXAMPLE)
    with pytest.raises(LoopError, match=r"at 'loop_1.condition': the condition returned shape"):
        FlowBuilder().loop_body(Double()).while_cond(nn.Linear(8, 3), 2).build(example=EXAMPLE)


def test_a_node_that_needs_real_values_ends_the_check_without_an_error(capsys):
    def peeks(x: Tensor) -> Tensor:
        return x if x.sum().item() == 0 else -x

    set_verbosity("verbose")
    try:
        model = FlowBuilder(peeks).through(wrong()).build(example=EXAMPLE)
    finally:
        set_verbosity("normal")
    assert capsys.readouterr().out == "shape check stopped at 'peeks_1': it needs real values.\n"
    assert model.tags == ()


def test_a_list_of_sizes_is_not_an_example():
    with pytest.raises(
        InputError, match=r"the example \[4, 8\] is a shape. Pass a tensor: torch.zeros\(4, 8\)."
    ):
        FlowBuilder(nn.Linear(8, 2)).build(example=[4, 8])


@pytest.mark.parametrize("example", [8, [torch.zeros(4, 8)]])
def test_an_example_of_the_wrong_type_is_named(example):
    words = (
        f"The example is of type {type(example).__name__}: pass a tensor, a tuple of all inputs, or a dict."
    )
    with pytest.raises(ShapeError, match=words):
        FlowBuilder(nn.Linear(8, 2)).build(example=example)


def test_a_wrong_dtype_of_the_example_is_called_a_dtype():
    with pytest.raises(
        ShapeError, match=r"'embedding_1'.*The dtype is wrong here, not the shape.*torch.long"
    ):
        FlowBuilder(nn.Embedding(5, 3)).build(example=torch.randn(2, 3))
    FlowBuilder(nn.Embedding(5, 3)).build(example=torch.zeros(2, 3, dtype=torch.long))

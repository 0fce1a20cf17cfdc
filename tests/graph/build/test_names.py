"""Names in the state dict: the tag, or the type with a count per type, hierarchical and stable."""

import re

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, LearnedHalt, SoftmaxRouter
from flodl.core import TagError

from ..nodes import Double, Shift, double

X = torch.tensor([[1.0, 2.0]])


def names(model) -> list[str]:
    return list(model.state_dict())


def test_a_node_is_named_by_its_tag_or_by_its_type_and_count():
    flow = FlowBuilder(nn.Linear(2, 2, bias=False)).through(nn.GELU()).through(nn.Linear(2, 2, bias=False))
    model = flow.tag("hidden").through(nn.Linear(2, 2, bias=False)).build()
    assert names(model) == ["linear_1.weight", "hidden.weight", "linear_3.weight"]


def test_inserting_a_node_of_another_type_renames_nothing():
    def chain(*extra):
        flow = FlowBuilder(nn.Linear(2, 2))
        for node in extra:
            flow.through(node)
        return flow.loop_body(Shift(2)).for_n(2).through(nn.Linear(2, 2)).build()

    assert names(chain()) == names(chain(nn.GELU(), nn.Dropout(0.1), double))


def test_adding_a_tag_renames_only_its_own_node():
    def chain(tag: bool):
        flow = FlowBuilder(Shift(2)).through(Shift(2))
        return (flow.tag("middle") if tag else flow).through(Shift(2)).build()

    assert names(chain(False)) == ["shift_1.offset", "shift_2.offset", "shift_3.offset"]
    assert names(chain(True)) == ["shift_1.offset", "middle.offset", "shift_3.offset"]


def test_the_parts_of_control_nodes_have_their_own_names():
    flow = FlowBuilder().loop_body(Shift(2)).until_cond(LearnedHalt(2), 2)
    flow.gate(SoftmaxRouter(2, 2), [Shift(2), Shift(2)])
    flow.switch(lambda x: 0, [Shift(2), Shift(2)])
    model = flow.map(Shift(2)).each().build()
    assert names(model) == [
        "loop_1.body.offset",
        "loop_1.condition.linear.weight",
        "loop_1.condition.linear.bias",
        "gate_1.router.linear.weight",
        "gate_1.router.linear.bias",
        "gate_1.expert_0.offset",
        "gate_1.expert_1.offset",
        "switch_1.branch_0.offset",
        "switch_1.branch_1.offset",
        "map_1.body.offset",
    ]


def test_nested_graphs_are_hierarchical_by_label_tag_or_count():
    def part(label=None):
        flow = FlowBuilder(Shift(2)).tag("inner")
        return (flow.label(label) if label else flow).build()

    model = FlowBuilder(part("encoder")).through(part()).through(part("decoder")).tag("named").build()
    assert names(model) == ["encoder.inner.offset", "graph_2.inner.offset", "named.inner.offset"]


def test_branches_of_split_and_merge_modules_are_nodes_too():
    model = FlowBuilder().split({"left": Shift(2), "right": Shift(2)}).merge(nn.Bilinear(2, 2, 1, bias=False))
    assert names(model.build()) == ["left.offset", "right.offset", "merge_1.weight"]


def test_function_nodes_are_named_after_the_function():
    model = FlowBuilder(double).through(lambda x: x).through(torch.relu).also(Double()).build()
    keys = [node.key for node in model.spec.nodes]
    assert keys == ["input", "double_1", "lambda_1", "relu_1", "double_2", "add_1"]


METHODS = ["train", "profile", "forward", "tags", "code", "to", "parameters", "double", "trend"]
OF_EXPORTS = ["graph", "meta", "recompile", "graph_signature", "validate_inputs", "class", "import"]
ATTRIBUTES = ["training", "label", "_spec", "_source", "_program", "_memory", "_modules", "_book", "__dict__"]


@pytest.mark.parametrize("name", METHODS + ATTRIBUTES + OF_EXPORTS)
@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda name: FlowBuilder(nn.Linear(2, 2)).tag(name), "tag"),
        (lambda name: FlowBuilder().also(nn.Linear(2, 2)).tag(name), "tag"),
        (lambda name: FlowBuilder().fork(nn.Linear(2, 2)).tag(name), "tag"),
        (lambda name: FlowBuilder().split({"left": Double(), name: Double()}), "tag"),
        (lambda name: FlowBuilder(nn.Linear(2, 2)).label(name), "label"),
    ],
)
def test_a_tag_or_label_that_shadows_an_attribute_of_a_graph_is_rejected(call, what, name):
    with pytest.raises(TagError) as caught:
        call(name)
    assert f"the {what} {name!r} is also a" in str(caught.value)
    call(re.search(r"for example '(.+)'", str(caught.value))[1])


def test_a_rejected_tag_leaves_the_chain_as_it_was():
    flow = FlowBuilder(nn.Linear(2, 2))
    for call in (flow.tag, flow.label, lambda name: flow.split({"left": Double(), name: Double()})):
        with pytest.raises(TagError):
            call("code")
    model = flow.tag("hidden").build()
    assert model.tags == ("hidden",)
    assert model.label is None


@pytest.mark.slow
def test_every_name_that_is_accepted_can_be_found_as_a_submodule_and_exported():
    words = ["weight", "input", "output", "T", "self", "torch", "add", "program", "bind", "a-b", "run_x"]
    flow = FlowBuilder(nn.Linear(2, 2))
    for word in words:
        flow.through(nn.Linear(2, 2)).tag(word)
    model = flow.build()
    assert all(model.get_submodule(word) is getattr(model, word) for word in words)
    assert torch.equal(torch.export.export(model, (X,)).module()(X), model(X))


def test_a_declared_input_may_be_called_like_an_attribute():
    def shifted(x, *, label):
        return x + label

    model = FlowBuilder().input("label").through(shifted).using("label").build()
    assert torch.equal(model(X, label=X), 2 * X)


def test_a_shared_module_has_several_names_and_one_parameter():
    shared = Shift(2)
    model = FlowBuilder(shared).through(Double()).through(shared).build()
    assert names(model) == ["shift_1.offset", "shift_2.offset"]
    assert len(list(model.parameters())) == 1


def test_a_shared_labeled_graph_has_several_names():
    shared = FlowBuilder(Shift(2)).label("twice").build()
    model = FlowBuilder(shared).through(Double()).through(shared).build()
    assert names(model) == ["twice.shift_1.offset", "twice_2.shift_1.offset"]
    assert len(list(model.parameters())) == 1

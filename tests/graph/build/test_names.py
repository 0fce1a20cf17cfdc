"""Names in the state dict: the tag, or the type with a count per type, hierarchical and stable."""

import pickle

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, LearnedHalt, SoftmaxRouter

from ..nodes import Double, Shift, double


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

    model = FlowBuilder(part("encoder")).through(part()).through(part("decoder")).tag("tagged").build()
    assert names(model) == ["encoder.inner.offset", "graph_2.inner.offset", "tagged.inner.offset"]


def test_branches_of_split_and_merge_modules_are_nodes_too():
    model = FlowBuilder().split({"left": Shift(2), "right": Shift(2)}).merge(nn.Bilinear(2, 2, 1, bias=False))
    assert names(model.build()) == ["left.offset", "right.offset", "merge_1.weight"]


def test_function_nodes_are_named_after_the_function():
    model = FlowBuilder(double).through(lambda x: x).through(torch.relu).also(Double()).build()
    keys = [node.key for node in model.spec.nodes]
    assert keys == ["input", "double_1", "lambda_1", "relu_1", "double_2", "add_1"]


METHODS = ["train", "profile", "forward", "tags", "label", "code", "to", "parameters", "T"]
ATTRIBUTES = ["training", "_spec", "_source", "_program", "_memory", "_modules", "_parameters"]


@pytest.mark.parametrize("tag", METHODS + ATTRIBUTES)
def test_a_tag_may_have_the_name_of_a_method_or_attribute(tag):
    torch.manual_seed(0)
    stream = torch.randn(3, 2)
    model = FlowBuilder(nn.Linear(2, 2)).tag(tag).through(nn.Linear(2, 2)).build()
    plain = FlowBuilder(nn.Linear(2, 2)).tag("other").through(nn.Linear(2, 2)).build()
    assert names(model) == [f"{tag}.weight", f"{tag}.bias", "linear_2.weight", "linear_2.bias"]
    plain.load_state_dict(
        {name.replace(f"{tag}.", "other."): value for name, value in model.state_dict().items()}
    )
    assert torch.equal(model(stream), plain(stream))
    assert model.tagged(tag).shape == (3, 2)
    model.freeze(tag)
    assert model.is_frozen(tag)
    assert model.eval().training is False
    assert model.train().training is True
    model = pickle.loads(pickle.dumps(model))
    model.keeps_tags = model.keeps_tags
    model.load_state_dict(model.state_dict())
    setattr(model, tag, nn.Identity())
    assert torch.equal(model(stream), plain.linear_2(stream))


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

"""The tree: parts of a model addressed by dotted path, wherever they are."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from flodl import FlowBuilder, Graph, GraphError, LearnedHalt, PathError, SoftmaxRouter

from .nodes import Double, Shift

X = torch.ones(2, 3)


def part(label: str | None, *tags: str):
    """A graph with one weight per tag, or one untagged."""
    flow = FlowBuilder()
    for tag in tags or (None,):
        flow.through(Shift(3))
        if tag is not None:
            flow.tag(tag)
    return (flow.label(label) if label else flow).build()


@pytest.fixture
def model():
    """A labeled graph in every position where a graph can be."""
    scan = part("scan", "hidden", "_private")
    encoder = FlowBuilder(scan).through(nn.Dropout(0.5)).tag("drop").label("encoder").build()
    return (
        FlowBuilder(encoder)
        .through(Shift(3))
        .tag("bridge")
        .loop_body(part("body", "turn"))
        .until_cond(LearnedHalt(3), 2)
        .tag("refine")
        .gate(SoftmaxRouter(3, 2), [part("expert_a", "out"), part(None, "quiet")])
        .switch(lambda x: 0, [part("branch_a"), Double()])
        .map(part("mapped", "row"))
        .each()
        .split([part("left"), part("right")])
        .tag_group("heads")
        .merge("add")
        .tag("sum")
        .build()
    )


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("encoder", "subgraph"),
        ("encoder.scan", "subgraph"),
        ("encoder.scan.hidden", "tag"),
        ("encoder.drop", "tag"),
        ("bridge", "tag"),
        ("body", "subgraph"),
        ("body.turn", "tag"),
        ("refine", "tag"),
        ("refine.body", "subgraph"),
        ("refine.body.turn", "tag"),
        ("refine.condition", "node"),
        ("refine.condition.linear", "node"),
        ("expert_a.out", "tag"),
        ("gate_1.expert_0", "subgraph"),
        ("gate_1.expert_1.quiet", "tag"),
        ("gate_1.router", "node"),
        ("branch_a", "subgraph"),
        ("branch_a.shift_1", "node"),
        ("switch_1.branch_0", "subgraph"),
        ("mapped.row", "tag"),
        ("map_1.body.row", "tag"),
        ("left", "subgraph"),
        ("heads_0", "tag"),
        ("sum", "tag"),
    ],
)
def test_every_part_has_a_path(model, path, kind):
    assert model.path_kind(path) == kind
    if kind == "subgraph":
        assert isinstance(model.subgraph(path), Graph)
    if kind == "tag":
        model(X)
        assert isinstance(model.tagged(path), torch.Tensor)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m: m.path_kind("encoder.scan.hiden"),
            "'encoder.scan.hiden' is neither a subgraph nor a tag. Did you mean 'encoder.scan.hidden'",
        ),
        (lambda m: m.path_kind("encodr"), "'encodr' is neither a subgraph nor a tag. Did you mean 'encoder'"),
        (lambda m: m.path_kind("bridge.x"), "'bridge.x' is neither a subgraph nor a tag."),
        (lambda m: m.path_kind(""), "'' is not a path. Join the names with dots, outermost first"),
        (lambda m: m.path_kind("encoder..scan"), "'encoder..scan' is not a path."),
        (lambda m: m.path_kind("encoder.*"), "'encoder.*' is a pattern. This method takes a single path."),
        (
            lambda m: m.path_kind("heads"),
            "'heads' is a group of tags. Name one of them: 'heads_0', 'heads_1'.",
        ),
        (
            lambda m: m.subgraph("bridge"),
            "'bridge' is a tag, not a subgraph. Read a tag with tagged('bridge').",
        ),
        (
            lambda m: m.tagged("encoder"),
            "'encoder' is a subgraph, not a tag. Put .tag(…) after the node to read it.",
        ),
        (lambda m: m.tagged("gate_1"), "'gate_1' is a node, not a tag."),
        (lambda m: m.freeze("nothing.*"), "no path matches 'nothing.*'."),
        (
            lambda m: m.freeze("sum"),
            "'sum' has no parameters to freeze: it names a value without any, such as a sum or an "
            "activation. Parameters are at '",
        ),
        (lambda m: m.thaw("encoder.drop"), "'encoder.drop' has no parameters to thaw"),
        (
            lambda m: m.set_training("sum", False),
            "'sum' has no module to switch: it names a sum or an input.",
        ),
    ],
)
def test_a_wrong_path_raises_with_the_reason_and_the_nearest_names(model, call, message):
    with pytest.raises(PathError) as caught:
        call(model)
    assert str(caught.value).startswith(message)
    assert isinstance(caught.value, GraphError)


def test_internal_tags_are_visible_only_from_inside(model):
    assert model.subgraph("encoder.scan").path_kind("_private") == "tag"
    for outside in (model, model.subgraph("encoder")):
        path = "encoder.scan._private" if outside is model else "scan._private"
        with pytest.raises(PathError, match="is neither a subgraph nor a tag"):
            outside.path_kind(path)
    assert len(model.parameters_at("encoder.scan")) == 2
    declared = FlowBuilder(Shift(3)).tag("a").through(Shift(3)).tag("b").internal("a").label("child").build()
    parent = FlowBuilder(declared).build()
    assert parent.path_kind("child.b") == "tag"
    with pytest.raises(PathError, match=r"'child.a' is neither"):
        parent.tagged("child.a")


def test_a_label_may_equal_the_tag_of_its_own_node():
    model = FlowBuilder(part("same", "inner")).tag("same").build()
    model(X)
    assert model.path_kind("same") == "subgraph"
    assert model.tagged("same").shape == (2, 3)


def test_subgraphs_are_listed_by_label_or_node_name(model):
    assert list(model.subgraphs) == [
        "encoder",
        "body",
        "expert_a",
        "gate_1.expert_1",
        "branch_a",
        "mapped",
        "left",
        "right",
    ]
    assert model.subgraphs["encoder"] is model.subgraph("encoder")


def test_parameters_at_returns_each_parameter_below_once(model):
    assert len(model.parameters_at("encoder.scan.hidden")) == 1
    assert len(model.parameters_at("encoder")) == 2
    assert len(model.parameters_at("refine")) == 3
    assert model.parameters_at("encoder.drop") == model.parameters_at("sum") == []
    shared = part("shared", "t")
    twice = FlowBuilder(shared).through(shared).build()
    assert len(twice.parameters_at("**")) == 1


@pytest.mark.parametrize(
    ("pattern", "count"),
    [("encoder.*", 2), ("encoder.scan.*", 1), ("**.turn", 1), ("heads_?", 2), ("[lm]*", 2), ("**", 14)],
)
def test_patterns_select_matching_parts(model, pattern, count):
    assert len(model.parameters_at(pattern)) == count


def test_a_frozen_part_is_not_trained_until_it_is_thawed(model):
    model.freeze("encoder.scan")
    assert model.is_frozen("encoder.scan.hidden")
    assert model.is_frozen("encoder")
    model.thaw("encoder.scan.hidden")
    assert not model.is_frozen("encoder.scan")
    model(X).sum().backward()
    hidden, private = model.parameters_at("encoder.scan")
    assert hidden.grad is not None
    assert private.grad is None
    model.freeze("**")
    assert not any(parameter.requires_grad for parameter in model.parameters())
    model.thaw("refine.*")
    assert model.is_frozen("encoder")
    assert not model.is_frozen("refine")


def test_a_part_without_parameters_is_not_frozen(model):
    assert not model.is_frozen("sum")


def test_a_part_can_be_switched_to_evaluation(model):
    model.set_training("encoder", False)
    assert not model.subgraph("encoder.scan").training
    assert model.training
    model.set_training("encoder.*", True)
    assert model.subgraph("encoder").drop.training
    model.freeze("encoder", eval_mode=True)
    assert not model.subgraph("encoder").drop.training


def test_a_part_frozen_with_eval_mode_stays_in_evaluation_until_it_is_thawed(model):
    drop = model.subgraph("encoder").drop
    model.freeze("encoder", eval_mode=True)
    assert model.eval().train() is model
    assert not drop.training
    assert model.training
    model.thaw("encoder")
    assert drop.training
    assert not model.is_frozen("encoder")


def test_a_group_of_tags_can_be_frozen_at_once(model):
    model.freeze("heads")
    assert model.is_frozen("left")
    assert model.is_frozen("right")
    assert len(model.parameters_at("heads")) == 2


def test_shared_experts_have_a_path_each():
    shared = Shift(3)
    model = FlowBuilder().gate(SoftmaxRouter(3, 2), [shared, shared]).tag("moe").build()
    assert model.parameters_at("moe.expert_0") == model.parameters_at("moe.expert_1") == [shared.offset]


def test_tags_are_none_before_the_first_call_and_raise_if_not_kept(model):
    assert model.tagged("bridge") is None
    model.keeps_tags = False
    model(X)
    with pytest.raises(PathError) as caught:
        model.tagged("encoder.scan.hidden")
    assert str(caught.value) == (
        "tags are not kept, so 'encoder.scan.hidden' has no value. Set model.keeps_tags = True first."
    )
    model.keeps_tags = True
    model(X)
    assert model.tagged("encoder.scan.hidden").shape == (2, 3)


def test_an_unlabeled_graph_is_reached_by_its_node_and_its_labeled_child_below_it():
    child = part("child", "leaf")
    model = FlowBuilder(FlowBuilder(child).build()).build()
    assert model.path_kind("graph_1") == "subgraph"
    assert model.path_kind("graph_1.child.leaf") == "tag"
    with pytest.raises(PathError, match="Did you mean"):
        model.path_kind("child.leaf")
    tagged = FlowBuilder(FlowBuilder(Shift(3)).tag("inner").build()).tag("outer").build()
    assert tagged.path_kind("outer.inner") == "tag"


def test_labels_inside_control_nodes_must_differ_too():
    with pytest.raises(GraphError, match="duplicate child label 'twin'"):
        FlowBuilder(part("twin")).loop_body(part("twin")).for_n(2).build()
    with pytest.raises(GraphError, match="duplicate child label 'twin'"):
        FlowBuilder().gate(SoftmaxRouter(3, 2), [part("twin"), part("twin")]).build()


def test_the_summary_counts_elements_and_shows_the_tree(model):
    model.freeze("encoder.scan.hidden")
    model.freeze("left")
    assert model.tree_summary().splitlines() == [
        "(root)  42 parameters, 6 frozen, tags: bridge, refine, heads_0, heads_1, sum",
        "├── encoder  6 parameters, 3 frozen, tags: drop",
        "│   └── scan  6 parameters, 3 frozen, tags: hidden, (_private)",
        "├── body  3 parameters, tags: turn",
        "├── expert_a  3 parameters, tags: out",
        "├── gate_1.expert_1  3 parameters, tags: quiet",
        "├── branch_a  3 parameters",
        "├── mapped  3 parameters, tags: row",
        "├── left  3 parameters, all frozen",
        "└── right  3 parameters",
    ]


def test_train_does_not_change_a_part_frozen_with_eval_mode():
    encoder = FlowBuilder(nn.Linear(4, 4)).through(nn.Dropout(0.5)).label("encoder").build()
    model = FlowBuilder(encoder).through(nn.Linear(4, 2)).build()
    model.freeze("encoder", eval_mode=True)
    model.train()
    assert model.training
    assert not any(module.training for module in encoder.modules())
    model.thaw("encoder")
    assert all(module.training for module in encoder.modules())


def test_a_tag_group_stands_for_its_tags():
    model = FlowBuilder().split([nn.Linear(4, 4), nn.Linear(4, 4)]).tag_group("head").merge("add").build()
    model.freeze("head")
    assert model.is_frozen("head_0")
    assert model.is_frozen("head")
    assert len(model.parameters_at("head")) == 4


def test_frozen_freezes_for_a_block_and_restores_the_previous_state():
    model = FlowBuilder(nn.Linear(4, 4)).tag("body").through(nn.Linear(4, 2)).tag("head").build()
    model.body.bias.requires_grad_(False)
    with model.frozen("body"):
        assert model.is_frozen("body")
    assert [p.requires_grad for p in model.parameters_at("body")] == [True, False]


def test_freezing_drops_the_gradient_that_an_optimizer_would_still_apply():
    model = FlowBuilder(nn.Linear(4, 2)).tag("body").build()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    model.freeze("body")
    before = model.body.weight.clone()
    optimizer.step()
    assert torch.equal(before, model.body.weight)


def test_thaw_notes_parameters_that_were_frozen_before_freeze(capsys):
    model = FlowBuilder(nn.Sequential(Shift(3), Shift(3))).tag("pair").build()
    model.pair[0].requires_grad_(False)
    model.freeze("pair")
    model.thaw("pair")
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert "note: thaw('pair') also unfreezes 1 of 2 parameters that were already" in capsys.readouterr().err
    model.freeze("pair")
    model.thaw("pair")
    assert capsys.readouterr().err == ""


def test_thaw_is_silent_about_what_freeze_froze_or_what_is_frozen_as_a_whole(capsys):
    model = FlowBuilder(nn.Sequential(Shift(3), Shift(3))).tag("pair").build()
    model.freeze("pair.0")
    model.freeze("pair")
    model.thaw("pair")
    model.requires_grad_(False)
    model.freeze("pair")
    model.thaw("pair")
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert capsys.readouterr().err == ""


def test_a_mode_must_be_a_bool():
    with pytest.raises(PathError, match=r"set_training\('a', 'eval'\): the mode is True for training"):
        FlowBuilder(Shift(3)).tag("a").build().set_training("a", "eval")


def test_a_long_value_in_place_of_a_path_is_named_by_its_type():
    model = FlowBuilder(Shift(3)).build()
    with pytest.raises(PathError, match=r"\(Tensor\) is not a path"):
        model.freeze(torch.zeros(100))


def test_parameters_and_buffers_have_the_names_of_the_state_dict():
    inner = FlowBuilder(nn.Linear(2, 2)).tag("deep").through(nn.BatchNorm1d(2)).label("inner").build()
    model = FlowBuilder(nn.Linear(2, 2)).tag("stem").through(inner).build()
    names = [name for name, _ in model.named_parameters_at("inner")]
    assert names == [name for name in model.state_dict() if name.startswith("inner.")][:4]
    assert [name for name, _ in model.named_parameters_at("inner.deep")] == [
        "inner.deep.weight",
        "inner.deep.bias",
    ]
    assert dict(model.named_parameters_at("stem"))["stem.weight"] is model.stem.weight
    assert [name.rpartition(".")[2] for name, _ in model.named_buffers_at("inner")] == [
        "running_mean", "running_var", "num_batches_tracked",
    ]  # fmt: skip
    with pytest.raises(PathError, match="inner"):
        model.named_parameters_at("iner")


def test_a_call_that_failed_leaves_no_tagged_values_and_no_traces():
    inner = FlowBuilder(nn.Linear(3, 3)).tag("inside").label("inner").build()
    body = FlowBuilder(nn.Linear(3, 3)).tag("turn").build()
    model = FlowBuilder(nn.Linear(3, 3)).tag("a").through(inner).loop_body(body).for_n(2).tag("loop").build()
    model(X)
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 4))
    for path in ("a", "loop", "inner.inside"):
        with pytest.raises(PathError, match=f"the last call raised an error, so '{path}' has no value. Call"):
            model.tagged(path)
    with pytest.raises(PathError, match="no loop publishes 'turn'"):
        model.traces("turn")
    model(X)
    assert model.tagged("inner.inside").shape == (2, 3)
    assert len(model.traces("turn")) == 2


def test_tagged_values_survive_the_recomputation_of_a_checkpointed_part():
    model = FlowBuilder(nn.Linear(3, 3)).tag("a").through(nn.Linear(3, 3)).tag("b").build()
    checkpoint(model, X, use_reentrant=False).sum().backward()
    assert model.tagged("a").shape == (2, 3)


@pytest.mark.parametrize(
    "method",
    ["freeze", "thaw", "frozen", "is_frozen", "modules_at", "parameters_at", "reset_state", "detach_state"],
)
def test_several_paths_are_an_error_that_says_how_to_write_them(method):
    graph = FlowBuilder(nn.Linear(2, 2)).tag("a").through(nn.Linear(2, 2)).tag("b").build()
    with pytest.raises(PathError, match=rf"{method} got str, str by position, .*Pass one path"):
        getattr(graph, method)("a", "b")


def test_a_wrong_call_of_freeze_changes_nothing():
    graph = FlowBuilder(nn.Linear(2, 2)).tag("a").through(nn.Linear(2, 2)).tag("b").build()
    with pytest.raises(PathError, match="Pass the other arguments by name"):
        graph.freeze("a", True)
    with pytest.raises(PathError, match=r"has no argument 'evalmode'\. Did you mean 'eval_mode'"):
        graph.freeze("a", evalmode=True)
    assert not graph.is_frozen("a")

"""The builder: what each call adds; a wrong call raises immediately and changes nothing."""

import copy
import functools

import pytest
import torch
from torch import nn

from flodl import ArgmaxSelector, FixedSelector, FlowBuilder, Graph, GraphError, SoftmaxRouter
from flodl.core import BuildError, LoopError, RefError, RouteError, TagError

from ..nodes import Blend, Broken, Double, Remember, Shift, Total, Triple, double, triple

X = torch.tensor([[1.0, 2.0]])


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (lambda: FlowBuilder(), X),
        (lambda: FlowBuilder(Double()), 2 * X),
        (lambda: FlowBuilder(double), 2 * X),
        (lambda: FlowBuilder(torch.square), X * X),
        (lambda: FlowBuilder(functools.partial(torch.add, alpha=3, other=1)), X + 3),
        (lambda: FlowBuilder(Double()).through(Triple()), 6 * X),
        (lambda: FlowBuilder().also(Double()), 3 * X),
        (lambda: FlowBuilder().also_with(Double(), Triple()), 5 * X),
        (lambda: FlowBuilder().fork(Double()).tag("side").through(Triple()), 3 * X),
        (lambda: FlowBuilder().split([Double(), Triple()]).merge("add"), 5 * X),
        (lambda: FlowBuilder().split((Double(), Triple())).merge("mean"), 2.5 * X),
        (lambda: FlowBuilder().split([Double(), Triple()]).merge("mul"), 6 * X * X),
        (lambda: FlowBuilder().split([Double(), Triple()]).merge("max"), 3 * X),
        (lambda: FlowBuilder().split([Double(), Triple()]).merge("cat"), torch.tensor([[2.0, 4, 3, 6]])),
        (
            lambda: FlowBuilder().split([Double(), Triple()]).merge("cat", dim=0),
            torch.tensor([[2.0, 4], [3, 6]]),
        ),
        (lambda: FlowBuilder().split([Double(), Triple()]).merge(lambda a, b: a - b), -X),
        (lambda: FlowBuilder().split([Double(), Triple()]).merge(lambda parts: parts[1]), 3 * X),
        (lambda: FlowBuilder().split([Double(), Triple()]).merge(lambda *parts: parts[0]), 2 * X),
        (
            lambda: (
                FlowBuilder().split([Double(), Triple()]).merge(nn.Bilinear(2, 2, 1)).through(torch.isfinite)
            ),
            torch.tensor([[True]]),
        ),
        (lambda: FlowBuilder().split([double, triple, double, triple]).merge("mean"), 2.5 * X),
        (lambda: FlowBuilder().split(nn.ModuleList([Double(), Triple()])).merge("add"), 5 * X),
        (lambda: FlowBuilder().loop_body(Double()).for_n(3), 8 * X),
        (lambda: FlowBuilder().switch(FixedSelector(0), [Double(), Triple()]), 2 * X),
        (lambda: FlowBuilder().map(Double()).each(), 2 * X),
        (lambda: FlowBuilder(Double()).tag("two").through(Triple()).map(Double()).over("two"), 4 * X),
        (lambda: FlowBuilder().map(Double(), batched=True).slices(2), 2 * X),
    ],
)
def test_each_method_adds_the_expected_nodes(chain, expected):
    model = chain().build()
    assert isinstance(model, Graph)
    assert torch.equal(model(X), expected)


def test_a_split_over_a_dict_tags_each_branch_by_its_name():
    model = FlowBuilder().split({"left": Double(), "right": Triple()}).merge("add").build()
    model(X)
    assert model.tags == ("left", "right")
    assert torch.equal(model.tagged("right"), 3 * X)


def test_tag_group_names_the_open_streams_by_position():
    model = FlowBuilder().split([Double(), Triple()]).tag_group("head").merge("add").build()
    model(X)
    assert model.tag_groups == {"head": ("head_0", "head_1")}
    assert torch.equal(model.tagged("head_1"), 3 * X)


def test_a_tag_right_after_a_fork_names_the_fork_and_a_later_one_the_stream():
    right_after = FlowBuilder().fork(Double()).tag("side").tag("stream").build()
    later = FlowBuilder().fork(Double()).through(Triple()).tag("main").build()
    right_after(X), later(X)
    assert torch.equal(right_after.tagged("side"), 2 * X)
    assert torch.equal(right_after.tagged("stream"), X)
    assert torch.equal(later.tagged("main"), 3 * X)


def test_a_tag_after_a_fork_with_references_names_the_fork():
    model = FlowBuilder().tag("ctx").fork(Blend()).using("ctx").tag("side").build()
    assert torch.equal(model(X), X)
    assert torch.equal(model.tagged("side"), 2 * X)


def test_a_node_may_have_several_tags_and_the_first_names_it():
    model = FlowBuilder(Shift(2)).tag("first").tag("second").build()
    model(X)
    assert torch.equal(model.tagged("first"), model.tagged("second"))
    assert list(model.state_dict()) == ["first.offset"]


def test_the_tag_input_may_name_the_entry():
    model = FlowBuilder(Double()).tag("input").through(Triple()).build()
    assert torch.equal(model(X), 6 * X)
    assert torch.equal(model.tagged("input"), 2 * X)


def test_an_unread_untagged_branch_logs_one_note(capsys):
    FlowBuilder().fork(Double()).build()
    assert (
        capsys.readouterr().err
        == "note: nothing reads 'double_1', but it runs in every call. Tag it to read it.\n"
    )
    FlowBuilder().fork(Double()).tag("side").build()
    assert capsys.readouterr().err == ""


def open_streams() -> FlowBuilder:
    return FlowBuilder().split([Double(), Triple()])


@pytest.mark.parametrize("needs_one_stream", ["through", "also", "fork", "loop_body", "map", "tag"])
def test_a_call_on_open_streams_says_what_to_do(needs_one_stream):
    argument = "name" if needs_one_stream == "tag" else Double()
    with pytest.raises(BuildError, match=f"{needs_one_stream} needs one stream, but 2 are open"):
        getattr(open_streams(), needs_one_stream)(argument)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (
            lambda: open_streams().split([Double(), Triple()]),
            BuildError,
            "split needs one stream, but 2 are open",
        ),
        (lambda: open_streams().also_with(Double(), Double()), BuildError, "also_with needs one stream"),
        (
            lambda: open_streams().gate(SoftmaxRouter(2, 2), [Double(), Triple()]),
            BuildError,
            "gate needs one stream, but 2 are open",
        ),
        (
            lambda: open_streams().switch(FixedSelector(0), [Double(), Triple()]),
            BuildError,
            "switch needs one stream, but 2 are open",
        ),
        (lambda: open_streams().build(), BuildError, "2 streams are still open. Call merge before build."),
        (
            lambda: FlowBuilder().merge("add"),
            BuildError,
            "merge needs several open streams, but there is one",
        ),
        (lambda: open_streams().merge("sum"), BuildError, "merge has no operation 'sum'."),
        (lambda: open_streams().merge("cat", dim="last"), BuildError, "merge got dim='last'"),
        (
            lambda: open_streams().merge(torch.stack),
            BuildError,
            "merge cannot read the parameters of stack. Wrap it in a function of the list",
        ),
        (lambda: FlowBuilder().split([Double()]), BuildError, "split got 1 branch. Pass at least 2"),
        (lambda: FlowBuilder().split([]), BuildError, "split got 0 branches. Pass at least 2"),
        (lambda: FlowBuilder().split(Double()), BuildError, "split got one module. Pass a list"),
        (lambda: FlowBuilder().split(3), BuildError, "split got an int. Pass a list of modules."),
        (lambda: FlowBuilder().gate(Double(), [Double()]), BuildError, "gate got 1 expert."),
        (lambda: FlowBuilder().switch(Double(), [Double()]), BuildError, "switch got 1 branch."),
        (lambda: FlowBuilder(nn.Linear), BuildError, "the class Linear, not an instance. Write Linear(…)."),
        (lambda: FlowBuilder(Double())(X), BuildError, "this is a builder, not a model yet. Call .build()"),
        (lambda: FlowBuilder("linear"), BuildError, "got a str. Pass an nn.Module or a function."),
        (lambda: FlowBuilder(FlowBuilder()), BuildError, "a builder that is not built. Call .build()"),
        (lambda: FlowBuilder().through(FlowBuilder().loop_body(double)), BuildError, "is not built"),
        (
            lambda: FlowBuilder().loop_body(double).tag("x"),
            BuildError,
            ".tag comes before the end of the loop",
        ),
        (lambda: FlowBuilder().map(double).build(), BuildError, ".build comes before the source of the map"),
        (lambda: FlowBuilder().loop_body(double).for_n(0), LoopError, "for_n got 0 iterations"),
        (lambda: FlowBuilder().loop_body(double).for_n(True), LoopError, "for_n got True iterations"),
        (lambda: FlowBuilder().loop_body(double).for_n(2.0), LoopError, "for_n got 2.0 iterations"),
        (
            lambda: FlowBuilder().loop_body(double).while_cond(double, 0),
            LoopError,
            "while_cond got 0 iterations. Pass an integer of at least 1.",
        ),
        (
            lambda: FlowBuilder().loop_body(double).until_cond(double, -1),
            LoopError,
            "until_cond got -1 iterations",
        ),
        (lambda: FlowBuilder().map(double).slices(0), BuildError, "slices(0): the number of slices"),
        (
            lambda: FlowBuilder(Double()).tag("hidden").map(double).over("hiden"),
            RefError,
            "map over 'hiden': this tag does not exist yet. Did you mean 'hidden'?",
        ),
        (lambda: FlowBuilder().tag("a.b"), TagError, "the tag 'a.b' has a dot"),
        (lambda: FlowBuilder().tag(""), TagError, "the tag '' is empty"),
        (lambda: FlowBuilder().tag(3), TagError, "the tag 3 is an int. Pass a string"),
        (
            lambda: FlowBuilder(Double()).tag("x").through(Triple()).tag("x"),
            TagError,
            "'x' already exists, on double",
        ),
        (lambda: open_streams().tag_group("a").tag_group("a"), TagError, "'a' is already a group"),
        (lambda: FlowBuilder().tag_group("a"), TagError, "needs several open streams, but there is one"),
        (
            lambda: FlowBuilder().tag("a").split([Double(), Triple()]).tag_group("a"),
            TagError,
            "'a' is already a tag",
        ),
        (
            lambda: FlowBuilder().tag("a_1").split([Double(), Triple()]).tag_group("a"),
            TagError,
            "the tag 'a_1' already exists, on an input. Use a different name.",
        ),
        (lambda: open_streams().tag_group("a").merge("add").tag("a"), TagError, "'a' is already a tag group"),
        (lambda: FlowBuilder().tag("a").input("a"), TagError, "the tag 'a' already exists"),
        (lambda: FlowBuilder().input("a", "a"), TagError, "declares a name twice"),
        (lambda: FlowBuilder().input(), BuildError, "input() declares nothing"),
        *(
            (lambda name=name: FlowBuilder().input(name), TagError, f"{name!r} cannot be a keyword argument")
            for name in ("input", "self", "class", "a-b")
        ),
        (
            lambda: FlowBuilder(Double()).tag("doubled").internal("doubeld").build(),
            TagError,
            "internal('doubeld') hides a tag that does not exist. Did you mean 'doubled'?",
        ),
        (
            lambda: FlowBuilder(Double()).through(Triple()).tag("double_1").build(),
            TagError,
            "the name 'double_1' belongs to two nodes",
        ),
        (lambda: FlowBuilder(Blend()).build(), RefError, "at 'blend_1': blend needs 'ctx'"),
        (
            lambda: FlowBuilder().gate(SoftmaxRouter(2, 2), [Blend(), Double()]),
            RefError,
            "an expert receives only the stream, but blend also needs 'ctx'",
        ),
        (
            lambda: FlowBuilder().switch(FixedSelector(0), [Blend(), Double()]),
            RefError,
            "a branch receives only the stream",
        ),
        (lambda: FlowBuilder().map(Blend()), RefError, "the body of a map receives only the stream"),
        (
            lambda: FlowBuilder().gate(SoftmaxRouter(2, 3), [Double(), Triple()]),
            RouteError,
            "the router gives 3 weights for 2 experts. Give the router 2 outputs or add an expert.",
        ),
        (
            lambda: FlowBuilder().switch(ArgmaxSelector(2, 3), [Double(), Triple()]),
            RouteError,
            "the selector chooses among 3 for 2 branches",
        ),
        (
            lambda: FlowBuilder().switch(FixedSelector(2), [Double(), Triple()]),
            RouteError,
            "the selector returned branch 2 of 2. Return an index from 0 to 1.",
        ),
    ],
)
def test_a_wrong_call_raises_immediately_with_the_value_and_advice(wrong, error, words):
    with pytest.raises(error) as caught:
        wrong()
    assert isinstance(caught.value, GraphError)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "refused",
    [
        lambda flow: flow.through("linear"),
        lambda flow: flow.also_with(Double(), "linear"),
        lambda flow: flow.split([Double(), "linear"]),
        lambda flow: flow.split({"fine": Double(), "not.fine": Triple()}),
        lambda flow: flow.gate(SoftmaxRouter(2, 3), [Double(), Triple()]),
        lambda flow: flow.using("ctx", "nothing"),
        lambda flow: flow.input("ctx", "ctx"),
        lambda flow: flow.merge("add"),
        lambda flow: flow.tag("made"),
        lambda flow: flow.loop_body(Double()).for_n(0),
    ],
)
def test_a_rejected_call_leaves_the_builder_unchanged(refused, capsys):
    flow = FlowBuilder(Double()).tag("made").through(Remember())
    with pytest.raises(GraphError):
        refused(flow)
    model = flow.using("memory").tag("memory").build()
    assert [node.key for node in model.spec.nodes] == ["input", "made", "state_memory", "memory"]
    assert capsys.readouterr().out == ""


def test_building_twice_gives_two_graphs_over_the_same_modules():
    flow = FlowBuilder(Shift(2)).tag("shift")
    first, second = flow.build(), flow.through(Double()).build()
    assert first is not second
    assert first.shift is second.shift
    assert torch.equal(second(X), 2 * X)


def test_the_label_may_come_anywhere_in_the_chain():
    assert FlowBuilder().label("early").through(Double()).build().label == "early"


def test_a_module_with_variable_keywords_accepts_any_reference_except_its_stream():
    model = FlowBuilder().tag("a-b").through(Total()).using("a-b").build()
    assert torch.equal(model(X), 2 * X)
    with pytest.raises(RefError, match="it takes any reference except its stream, 'x'"):
        FlowBuilder().tag("x").through(Total()).using("x")


@pytest.mark.parametrize("name", ["graph", "torch", "program", "bind", "run_double_1", "others"])
def test_an_input_may_have_any_name_that_the_generated_code_uses(name):
    model = FlowBuilder(Double()).input(name).through(Total()).using(name).build()
    assert torch.equal(model(X, **{name: X}), 3 * X)


def test_a_user_module_may_have_attributes_with_our_names():
    node = Double()
    node._spec = node.label = node.traces = "mine"
    model = FlowBuilder(node).build()
    model.detach_state()
    assert torch.equal(model(X), 2 * X)


def test_an_error_in_a_forward_names_the_node_and_its_inputs():
    with pytest.raises(ValueError, match="broken on purpose") as caught:
        FlowBuilder(Double()).through(Broken()).build()(X)
    assert caught.value.__notes__ == ["flodl: at 'broken_1', Broken(), given (1, 2)"]


def test_an_error_keeps_the_values_of_the_previous_call():
    calls = []

    def fails_second(x):
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("second call")
        return x

    model = FlowBuilder(Remember()).using("memory").tag("memory").through(fails_second).build()
    model(X)
    with pytest.raises(ValueError, match="second call"):
        model(10 * X)
    assert torch.equal(model.tagged("memory"), X)
    assert torch.equal(model(X), 2 * X)


def test_the_generated_code_is_straight_line_python():
    model = FlowBuilder(nn.Linear(2, 2)).also(nn.GELU()).build()
    assert model.code.splitlines() == [
        "def bind(run_linear_1, run_gelu_1):",
        "    def program(graph, input):",
        "        linear_1 = run_linear_1(input)",
        "        del input",
        "        gelu_1 = run_gelu_1(linear_1)",
        "        add_1 = add(linear_1, gelu_1)",
        "        del linear_1, gelu_1",
        "        return add_1",
        "    return program",
    ]


def test_the_call_after_an_incomplete_loop_or_map_is_rejected():
    flow = FlowBuilder(Double())
    flow.loop_body(Triple())
    with pytest.raises(BuildError, match="a loop has no end yet"):
        flow.through(Double())
    with pytest.raises(BuildError, match="a loop has no end yet"):
        flow.build()
    other = FlowBuilder(Double())
    other.map(Triple())
    with pytest.raises(BuildError, match="a map has no source yet"):
        other.build()


def test_a_loop_cannot_be_completed_twice():
    loop = FlowBuilder(Double()).loop_body(Triple())
    loop.for_n(2)
    with pytest.raises(BuildError, match="is already complete"):
        loop.for_n(2)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: FlowBuilder(3), "FlowBuilder got an int. Pass an nn.Module or a function."),
        (
            lambda: FlowBuilder(Double(), Double()),
            "FlowBuilder got 1 argument too many. Write FlowBuilder(first)",
        ),
        (lambda: FlowBuilder().through(Double(), Double()), "through got 1 argument too many."),
        (lambda: FlowBuilder().split(Double(), Double()), "too many. Write split([first, second])."),
        (
            lambda: FlowBuilder().gate(SoftmaxRouter(2, 2), Double(), Double()),
            "Write gate(router, [first, second])",
        ),
        (
            lambda: FlowBuilder().switch(FixedSelector(0), Double(), Double()),
            "Write switch(selector, [first, ",
        ),
        (lambda: open_streams().merge("mean", dim=1), "merge('mean', dim=1): only 'cat' has a dimension."),
        (
            lambda: open_streams().merge(double, dim=0),
            "merge(a function, dim=0): only 'cat' has a dimension.",
        ),
        (lambda: open_streams().merge("cat", dim=True), "merge got dim=True."),
        (
            lambda: open_streams().merge(lambda a, b, c: a),
            "merge joins 2 streams, but lambda takes 3 values.",
        ),
        (
            lambda: open_streams().merge(lambda a, b=None: a),
            "merge cannot tell whether lambda takes the 2 values",
        ),
        (lambda: open_streams().merge(nn.Linear(2, 2)), "linear, which takes one tensor. Merge first"),
        (
            lambda: FlowBuilder(Double()).trough(Double()),
            "FlowBuilder has no method 'trough'. Did you mean 'through'?",
        ),
        (
            lambda: FlowBuilder(Double()).parameters(),
            ".parameters belongs to the model, and this is a builder.",
        ),
        (
            lambda: FlowBuilder().also(nn.ReLU(inplace=True)).build(),
            "at 'relu_1': the module writes into its input",
        ),
        (
            lambda: FlowBuilder(Double()).fork(nn.ReLU(inplace=True)).tag("side").build(),
            "at 'side': the module writes into its input (inplace=True), which is also read by the output",
        ),
        (
            lambda: (
                FlowBuilder().also(nn.Sequential(nn.Identity(), nn.Dropout(inplace=True), Double())).build()
            ),
            "at 'sequential_1': the module writes into its input (inplace=True), which is also read",
        ),
    ],
)
def test_a_mistake_of_the_chain_is_explained(wrong, words):
    with pytest.raises(BuildError) as caught:
        wrong()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("merge", "expected"),
    [
        (lambda a, b, scale=2.0: scale * (a + b), 10 * X),
        (lambda values, dim=0: torch.stack(values, dim).sum(dim), 5 * X),
        (lambda values, *, mask=None: values[1], 3 * X),
        (lambda a, *others: a, 2 * X),
    ],
)
def test_options_of_a_merge_function_keep_their_defaults(merge, expected):
    assert torch.equal(open_streams().merge(merge).build()(X), expected)


def test_an_in_place_module_in_a_chain_is_accepted(capsys):
    model = (
        FlowBuilder(Shift(2)).through(nn.ReLU(inplace=True)).split([Double(), Triple()]).merge("add").build()
    )
    assert torch.equal(model(X), 5 * X)
    branches = [nn.Sequential(Double(), nn.ReLU(inplace=True)), Triple()]
    assert torch.equal(FlowBuilder().split(branches).merge("add").build()(X), 5 * X)
    assert capsys.readouterr().err == ""


def test_a_tag_that_a_module_overwrites_is_noted(capsys):
    FlowBuilder(Shift(2)).tag("before").through(nn.ReLU(inplace=True)).build()
    assert "tagged('before') returns the overwritten value. Use inplace=False" in capsys.readouterr().err


def test_branches_that_are_one_module_are_noted(capsys):
    shared = Shift(2)
    FlowBuilder().split([shared] * 3)
    assert (
        "note: the 3 branches of split are the same module, so they share their weights"
        in capsys.readouterr().err
    )
    FlowBuilder().gate(SoftmaxRouter(2, 2), [shared, shared])
    assert "note: the 2 experts of gate are the same module" in capsys.readouterr().err
    FlowBuilder().split([nn.Sequential(shared, nn.Dropout())] * 2).merge("add").split([shared, Shift(2)])
    FlowBuilder().split([Double()] * 2)
    assert capsys.readouterr().err == ""


def test_building_again_notes_that_the_graphs_share_their_modules(capsys):
    flow = FlowBuilder(Shift(2))
    flow.build()
    assert capsys.readouterr().err == ""
    flow.build()
    assert capsys.readouterr().err.startswith(
        "note: this builder was built before. Both graphs contain the same"
    )


def test_a_builder_can_be_copied_before_its_chain_is_complete():
    copied = copy.deepcopy(FlowBuilder(Double()).loop_body(Triple()))
    assert torch.equal(copied.for_n(2).build()(X), 18 * X)
    assert not hasattr(FlowBuilder(), "parameters")


def test_a_module_dict_names_the_branches_of_a_split():
    flow = FlowBuilder().split(nn.ModuleDict({"left": Double(), "right": Triple()})).merge("add")
    assert flow.build().tags == ("left", "right")

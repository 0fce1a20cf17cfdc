"""References: values passed to later nodes in the same call, or carried into the next one."""

import pytest
import torch
from torch import Tensor, nn

from flodl import FlowBuilder, GraphError, ThresholdHalt
from flodl.core import RefError, StateError, TagError

from ..nodes import Blend, Double, Equal, Remember, Shift, Total, Triple

X = torch.tensor([[1.0, 2.0]])


def test_a_reference_is_a_keyword_argument_of_the_node():
    model = FlowBuilder(Double()).tag("ctx").through(Triple()).through(Blend()).using("ctx").build()
    assert torch.equal(model(X), 8 * X)


@pytest.mark.parametrize("method", ["using", "output"])
def test_a_tag_inside_a_nested_graph_is_an_error_that_says_how_to_return_it(method):
    inner = FlowBuilder(Double()).tag("f").through(Triple()).label("e").build()
    flow = FlowBuilder(inner).tag("e").through(Blend())
    with pytest.raises(RefError, match=rf"{method}\('e\.f'\): .* from the inner graph with output\('f', …\)"):
        getattr(flow, method)("e.f")
    both = FlowBuilder(Double()).tag("f").through(Triple()).tag("last").output("f", "last").build()
    model = (
        FlowBuilder(both)
        .tag("e")
        .through(lambda e: e["last"])
        .through(lambda x, e: x + e["f"])
        .using("e")
        .build()
    )
    assert torch.equal(model(X), (6 + 2) * X)


def test_two_calls_to_using_are_combined():
    model = (
        FlowBuilder(Double())
        .tag("a")
        .through(Triple())
        .tag("b")
        .through(Total())
        .using("a")
        .using("b")
        .build()
    )
    assert torch.equal(model(X), (6 + 2 + 6) * X)


def test_references_arrive_in_the_order_in_which_they_were_named():
    seen = []

    def note(x: Tensor, **refs: Tensor) -> Tensor:
        seen.extend(refs)
        return x

    FlowBuilder().tag("b").input("a").through(note).using("b", "a").build()(X, a=X)
    assert seen == ["b", "a"]


def test_a_reference_to_an_optional_parameter_may_be_left_out():
    assert torch.equal(FlowBuilder(Remember()).build()(X), X)


def test_plain_functions_take_references_too():
    model = FlowBuilder().tag("ctx").through(lambda x, ctx: x - ctx).using("ctx").build()
    assert torch.equal(model(X), 0 * X)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: FlowBuilder().using("x"), "using has no node to bind to"),
        (
            lambda: FlowBuilder().tag("a").split([Double(), Double()]).merge("add").using("a"),
            "using has no node to bind to: a sum, a merge and the input take no references",
        ),
        (lambda: FlowBuilder().tag("a").through(Total()).using("a", "a"), "names a tag twice"),
        (lambda: FlowBuilder().tag("a").through(Total()).using("a").using("a"), "already uses 'a'"),
        (
            lambda: FlowBuilder().tag("cx").through(Blend()).using("cx"),
            "blend takes no reference 'cx': it takes 'ctx'. Add a keyword parameter 'cx' (or **refs)",
        ),
        (lambda: FlowBuilder().tag("a").through(Double()).using("a"), "double takes no reference 'a'"),
        (
            lambda: FlowBuilder().tag("a").through(torch.relu).using("a"),
            "its parameters cannot be read (it is not written in Python). Wrap it in a function",
        ),
        (lambda: FlowBuilder().tag("a").map(Total()).each().using("a"), "a map takes no references"),
        (
            lambda: FlowBuilder().tag("a").gate(Equal(), [Double(), Triple()]).using("a"),
            "the router of the gate takes no reference 'a'",
        ),
        (
            lambda: FlowBuilder().tag("a").switch(Equal(), [Double(), Triple()]).using("a"),
            "the selector of the switch takes no reference 'a'",
        ),
        (
            lambda: FlowBuilder(Total()).tag("a").using("a"),
            "that value depends on it, which would be a cycle",
        ),
        (lambda: FlowBuilder().also(Total()).tag("a").using("a"), "which would be a cycle"),
        (lambda: FlowBuilder().tag("a").through(Total()).using("a", init="zeros"), "needs no initial value"),
        (
            lambda: FlowBuilder(Total()).using("memry").through(Double()).tag("memory").build(),
            "using refers to 'memry', but no tag has this name. Add the tag, or fix the name. "
            "Did you mean 'memory'?",
        ),
        (
            lambda: FlowBuilder(Total()).using("h", init="zeros").through(Total()).using("h", init=X),
            "'h' has two initial values",
        ),
    ],
)
def test_a_wrong_reference_is_rejected_immediately(wrong, words):
    with pytest.raises(RefError) as caught:
        wrong()
    assert words in str(caught.value)


FIRST_VALUES = {
    "nothing": (None, 0.0),
    "zeros": ("zeros", 0.0),
    "a tensor": (torch.full((1, 2), 5.0), 5.0),
    "a parameter": (nn.Parameter(torch.full((1, 2), 7.0)), 7.0),
    "a function of the stream": (lambda stream: torch.full_like(stream, 9.0), 9.0),
}


@pytest.mark.parametrize(("init", "first"), FIRST_VALUES.values(), ids=FIRST_VALUES.keys())
def test_a_carried_value_starts_with_its_initial_value(init, first):
    model = FlowBuilder(Remember()).using("memory", init=init).tag("memory").build()
    assert torch.equal(model(X), X + first)
    assert torch.equal(model(X), 2 * X + first)
    model.reset_state()
    assert torch.equal(model(X), X + first)


def test_without_an_initial_value_the_node_gets_none():
    seen = []

    def note(x: Tensor, memory: Tensor | None) -> Tensor:
        seen.append(memory is None)
        return x

    model = FlowBuilder(note).using("memory").tag("memory").build()
    model(X), model(X)
    assert seen == [True, False]


def test_a_learned_initial_value_is_a_parameter_that_is_trained_and_saved():
    model = FlowBuilder(Remember()).using("memory", init=nn.Parameter(torch.zeros(2))).tag("memory").build()
    model(X).sum().backward()
    assert dict(model.named_parameters())["memory_init"].grad.tolist() == [1.0, 1.0]
    fixed = FlowBuilder(Remember()).using("memory", init=torch.ones(2)).tag("memory").build()
    assert list(fixed.state_dict()) == ["memory_init"]
    assert list(fixed.parameters()) == []


def test_an_initial_value_with_a_leading_dimension_of_one_is_expanded_to_the_batch():
    seen = []

    def note(x: Tensor, memory: Tensor) -> Tensor:
        seen.append(tuple(memory.shape))
        return x

    FlowBuilder(note).using("memory", init=torch.zeros(1, 5)).tag("memory").build()(torch.ones(4, 2))
    assert seen == [(4, 5)]


def test_the_stored_name_of_a_first_value_belongs_to_it_alone():
    flow = FlowBuilder(Remember()).using("memory", init=torch.ones(2)).tag("memory")
    with pytest.raises(TagError, match=r"stored as 'memory_init', which is also a node. Rename"):
        flow.through(Shift(2)).tag("memory_init").build()


def test_an_initial_value_of_the_wrong_type_is_rejected():
    with pytest.raises(StateError, match=r"init=3 for 'memory'. Use None, 'zeros', a tensor"):
        FlowBuilder(Remember()).using("memory", init=3)


def test_several_readers_share_one_carried_value():
    flow = FlowBuilder(Remember()).using("memory", init="zeros").through(Double())
    model = flow.through(Remember()).using("memory").tag("memory").build()
    assert model(X).tolist() == [[2.0, 4.0]]
    assert torch.equal(model(X), 2 * (X + 2 * X) + 2 * X)
    assert sum(node.kind == "state" for node in model.spec.nodes) == 1


def test_an_input_that_is_declared_after_it_is_used_is_an_error_and_not_carried():
    flow = FlowBuilder(Remember()).using("memory").through(Double())
    with pytest.raises(RefError, match=r"using\('memory'\) comes before input\('memory'\), .* previous call"):
        flow.input("memory")
    model = FlowBuilder().input("memory").through(Remember()).using("memory").build()
    assert torch.equal(model(X, memory=5 * X), 6 * X)
    assert torch.equal(model(X, memory=0 * X), X)


def test_a_member_of_a_tag_group_can_be_carried():
    flow = FlowBuilder(Total()).using("head_1").split([Double(), Triple()])
    model = flow.tag_group("head").merge("add").build()
    assert torch.equal(model(X), 5 * X)
    assert torch.equal(model(X), 20 * X)


def test_using_right_after_a_split_passes_the_reference_to_every_branch():
    model = FlowBuilder(Double()).tag("ctx").split([Blend(), Blend()]).using("ctx").merge("add").build()
    assert torch.equal(model(X), 8 * X)
    carried = FlowBuilder().split([Remember(), Remember()]).using("memory").merge("add").tag("memory").build()
    assert torch.equal(carried(X), 2 * X)
    assert torch.equal(carried(X), 6 * X)


def test_a_nested_graph_takes_its_declared_inputs_as_references():
    inner = FlowBuilder().input("ctx", "scale").through(lambda x, ctx, scale: (x + ctx) * scale)
    inner = inner.using("ctx", "scale").build()
    model = FlowBuilder().input("scale").tag("ctx").through(inner).using("ctx", "scale").build()
    assert torch.equal(model(X, scale=torch.tensor(3.0)), 6 * X)
    with pytest.raises(RefError, match="at 'graph_1': graph needs 'ctx', 'scale'"):
        FlowBuilder(inner).build()
    with pytest.raises(RefError, match="graph takes no reference 'other': it takes 'ctx', 'scale'"):
        FlowBuilder().tag("other").through(inner).using("other")


def test_a_loop_passes_references_to_its_body_and_its_condition():
    def reached(x: Tensor, *, limit: Tensor) -> Tensor:
        return x.amax() - limit

    flow = FlowBuilder().input("limit").tag("ctx")
    model = flow.loop_body(Blend()).while_cond(reached, 10).using("ctx", "limit").build()
    assert torch.equal(model(X, limit=torch.tensor(6.5)), 4 * X)


def test_a_loop_body_with_emit_takes_references_too():
    def body(x: Tensor, emit, ctx: Tensor) -> Tensor:
        emit("sum", x + ctx)
        return x + ctx

    model = FlowBuilder().tag("ctx").loop_body(body).for_n(2).using("ctx").build()
    assert torch.equal(model(X), 3 * X)
    assert [value[0, 0].item() for value in model.traces("sum")] == [2.0, 3.0]


def test_a_gate_passes_references_to_its_router_and_a_switch_to_its_selector():
    def first_or_second(x: Tensor, *, which: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(which, 2).to(x.dtype)

    def selector(x: Tensor, *, which: Tensor) -> Tensor:
        return which

    which = torch.tensor([1, 0])
    rows = torch.ones(2, 2)
    gate = FlowBuilder().input("which").gate(first_or_second, [Double(), Triple()]).using("which").build()
    switch = FlowBuilder().input("which").switch(selector, [Double(), Triple()]).using("which").build()
    assert gate(rows, which=which).tolist() == switch(rows, which=which).tolist() == [[3, 3], [2, 2]]


@pytest.mark.parametrize("name", ["stream", "x", "state", "input"])
def test_control_nodes_take_references_of_any_name(name):
    def body(value: Tensor, **refs: Tensor) -> Tensor:
        return value + refs[name]

    model = FlowBuilder().tag(name).loop_body(body).for_n(2).using(name).build()
    assert torch.equal(model(X), 3 * X)


def test_a_carried_value_with_a_different_batch_size_is_rejected():
    model = FlowBuilder(Remember()).using("memory").tag("memory").build()
    model(torch.ones(4, 2))
    with pytest.raises(StateError) as caught:
        model(torch.ones(3, 2))
    assert str(caught.value) == (
        "at 'state_memory': the carried value 'memory' comes from a batch of 4, this call has 3. "
        "Call reset_state() where a sequence ends, or keep the batch size."
    )
    model.reset_state()
    assert model(torch.ones(3, 2)).shape == (3, 2)


def test_a_carried_value_without_a_batch_dimension_survives_a_change_of_batch_size():
    model = FlowBuilder(Total()).using("total").fork(lambda x: x.sum()).tag("total").build()
    assert model(torch.ones(4, 2)).shape == (4, 2)
    assert model(torch.ones(3, 2)).tolist() == [[9.0, 9.0]] * 3


def test_a_carried_value_keeps_its_history_until_it_is_detached():
    shift = Shift(2)
    model = FlowBuilder(Remember()).using("memory").through(shift).tag("memory").build()
    model(X)
    model(X).sum().backward()
    assert shift.offset.grad.tolist() == [2.0, 2.0]
    shift.offset.grad = None
    model.reset_state()
    model(X)
    model.end_step()
    model(X).sum().backward()
    assert shift.offset.grad.tolist() == [1.0, 1.0]


def test_a_condition_without_references_leaves_them_to_the_body():
    model = (
        FlowBuilder().tag("ctx").loop_body(Blend()).until_cond(ThresholdHalt(5.0), 10).using("ctx").build()
    )
    assert torch.equal(model(X), 3 * X)


def test_a_tag_can_be_passed_under_another_name():
    model = FlowBuilder(Double()).tag("doubled").through(Blend()).using(ctx="doubled").build()
    assert torch.equal(model(X), 4 * X)
    two = FlowBuilder().input("goal").tag("start").through(Total()).using("goal", first="start").build()
    assert torch.equal(two(X, goal=X), 3 * X)
    carried = FlowBuilder(Remember()).using(memory="last").tag("last").build()
    assert torch.equal(carried(X), X)
    assert torch.equal(carried(X), 2 * X)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda flow: flow.using(context="doubled"), "blend takes no reference 'context': it takes 'ctx'"),
        (lambda flow: flow.using(ctx=3), "the tag 3 is an int. Pass a string"),
        (lambda flow: flow.using("ctx", ctx="doubled"), "names a tag twice"),
        (lambda flow: flow.using(ctx="dubled").build(), r"no tag has this name. .* Did you mean 'doubled'"),
    ],
)
def test_a_wrong_name_of_a_renamed_tag_is_explained(wrong, words):
    with pytest.raises(GraphError, match=words):
        wrong(FlowBuilder(Double()).tag("doubled").through(Blend()))

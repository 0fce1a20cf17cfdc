"""A graph is a good citizen: everything that works on a module works on it."""

import copy
import pickle
import traceback

import pytest
import torch
from torch import Tensor, nn

from flodl import ArgmaxSelector, FlowBuilder, LearnedHalt, SoftmaxRouter, ThresholdHalt, TopKRouter
from flodl.core import BuildError, GraphError, InputError

from .nodes import Blend, Double, Remember, Shift, Total

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def straight():
    """A model with one of each construct that needs no host decision."""
    torch.manual_seed(0)
    part = FlowBuilder(nn.Linear(8, 8)).through(nn.Tanh()).tag("inner").label("part").build()
    return (
        FlowBuilder(nn.Linear(8, 8))
        .tag("entry")
        .also(nn.Linear(8, 8))
        .fork(nn.Linear(8, 2))
        .tag("side")
        .split([nn.Linear(8, 8), part])
        .tag_group("heads")
        .merge("mean")
        .loop_body(nn.Linear(8, 8))
        .for_n(2)
        .loop_body(nn.Linear(8, 8))
        .until_cond(LearnedHalt(8), 3)
        .loop_body(nn.Linear(8, 8))
        .while_cond(ThresholdHalt(2.0, per_sample=True), 3, masked=True)
        .gate(SoftmaxRouter(8, 2), [nn.Linear(8, 8), nn.Linear(8, 8)])
        .using("entry")
        .gate(TopKRouter(8, 3), [nn.Linear(8, 8), nn.Linear(8, 8), nn.Identity()])
        .switch(ArgmaxSelector(8, 2), [nn.Linear(8, 8), nn.Identity()], masked=True)
        .map(nn.Linear(2, 2), batched=True)
        .slices(4)
        .through(Total())
        .using("entry", "heads_1")
        .tag("output")
        .build()
    )


def gradients(model: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def test_the_state_dict_round_trips_strictly():
    first, second = straight(), straight()
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.add_(1.0)
    assert not torch.equal(first(X), second(X))
    assert second.load_state_dict(first.state_dict()).missing_keys == []
    assert torch.equal(first(X), second(X))


def test_a_deep_copy_computes_the_same_and_shares_nothing():
    model = straight()
    output = model(X)
    model.record("loss", 1.0)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(X), output)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    twin.record("loss", 5.0)
    model.flush(), twin.flush()
    assert torch.equal(model(X), output)
    assert model.trend("loss").values == [1.0]
    assert twin.trend("loss").values == [3.0]
    assert twin.structural_hash == model.structural_hash


def test_a_graph_can_be_pickled_after_a_call_and_a_backward():
    model = straight()
    model(X).sum().backward()
    twin = pickle.loads(pickle.dumps(model))
    assert torch.equal(twin(X), model(X))
    assert twin.tags == model.tags
    assert twin.code == model.code


def test_moving_and_casting_reaches_everything():
    model = straight().double()
    assert model(X.double()).dtype == torch.float64
    assert all(parameter.is_meta for parameter in model.to("meta").parameters())
    assert model(X.to("meta").double()).shape == (4, 8)


def test_train_eval_apply_and_requires_grad_reach_everything():
    model = FlowBuilder(nn.Dropout(0.5)).loop_body(nn.Dropout(0.5)).for_n(2).build()
    assert torch.equal(model.eval()(X), X)
    assert not torch.equal(model.train()(X), X)
    seen = []
    straight().apply(lambda module: seen.append(type(module).__name__))
    assert {"Loop", "Gate", "Switch", "Map", "Graph", "LearnedHalt"} <= set(seen)
    assert not any(parameter.requires_grad for parameter in straight().requires_grad_(False).parameters())


def test_hooks_on_nodes_and_on_the_graph_run():
    linear = nn.Linear(8, 8)
    model = FlowBuilder(linear).tag("entry").through(nn.ReLU()).build()
    seen = []
    linear.register_forward_pre_hook(lambda module, args: seen.append("before node"))
    linear.register_forward_hook(lambda module, args, output: output * 0)
    linear.register_full_backward_hook(lambda module, before, after: seen.append("node backward"))
    model.register_forward_pre_hook(lambda module, args: seen.append("before graph"))
    model.register_forward_hook(lambda module, args, output: seen.append("after graph"))
    model.register_full_backward_hook(lambda module, before, after: seen.append("graph backward"))
    output = model(X.clone().requires_grad_())
    assert torch.equal(output, torch.zeros(4, 8))
    output.sum().backward()
    assert seen == ["before graph", "before node", "after graph", "node backward", "graph backward"]


def test_a_node_can_be_replaced_by_assignment():
    model = FlowBuilder(nn.Linear(8, 8)).tag("entry").through(Double()).build()
    model.entry = nn.Identity()
    assert torch.equal(model(X), 2 * X)
    model.double_1 = Shift(8, 1.0)
    assert torch.equal(model(X), X + 1)
    model.set_submodule("entry", Double())
    assert torch.equal(model(X), 2 * X + 1)
    model.add_module("extra", nn.Linear(2, 2))
    assert torch.equal(copy.deepcopy(model)(X), 2 * X + 1)
    assert "extra.weight" in model.state_dict()


def test_a_part_of_a_control_node_can_be_replaced_by_assignment():
    model = FlowBuilder().loop_body(nn.Linear(8, 8)).for_n(2).tag("loop").build()
    model.loop.body = Double()
    assert torch.equal(model(X), 4 * X)


def test_a_parametrized_node_works():
    model = FlowBuilder(nn.Linear(8, 8, bias=False)).build()
    nn.utils.parametrizations.orthogonal(model.linear_1)
    torch.testing.assert_close(model(X).norm(dim=1), X.norm(dim=1))


def test_a_shared_module_gets_the_gradients_of_both_uses():
    shared = Shift(8)
    FlowBuilder(shared).through(Double()).through(shared).build()(X).sum().backward()
    assert shared.offset.grad.tolist() == [12.0] * 8


def test_a_shared_labeled_graph_is_one_child():
    shared = FlowBuilder(nn.Linear(8, 8)).tag("inner").label("twice").build()
    model = FlowBuilder(shared).through(nn.ReLU()).through(shared).build()
    assert list(model.subgraphs) == ["twice"]
    assert model.subgraph("twice") is shared
    torch.testing.assert_close(model(X), shared(shared(X).relu()))
    model.record("twice.loss", 1.0)
    model.flush()
    assert model.latest_metrics() == {"twice.loss": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_it_compiles_without_graph_breaks_to_the_same_values_and_gradients(backend):
    torch._dynamo.reset()
    model = straight()
    compiled = torch.compile(straight(), fullgraph=True, backend=backend)
    expected, output = model(X), compiled(X)
    torch.testing.assert_close(output, expected)
    expected.square().sum().backward()
    output.square().sum().backward()
    for by_hand, by_compiler in zip(gradients(model), gradients(compiled)):
        torch.testing.assert_close(by_compiler, by_hand)
    torch.testing.assert_close(compiled.tagged("side"), model.tagged("side"))


@pytest.mark.slow
def test_carried_state_works_in_a_compiled_graph():
    torch._dynamo.reset()
    model = FlowBuilder(Remember()).using("memory").tag("memory").build()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        assert torch.equal(compiled(X), X)
        assert torch.equal(compiled(X), 2 * X)
    model.reset_state()
    with torch.no_grad():
        assert torch.equal(compiled(X), X)


def test_declared_inputs_work_in_a_compiled_graph():
    torch._dynamo.reset()
    model = FlowBuilder().input("ctx").through(Blend()).using("ctx").build()
    assert torch.equal(torch.compile(model, fullgraph=True, backend="eager")(X, ctx=X), 2 * X)


@pytest.mark.slow
def test_it_can_be_exported_with_a_batch_of_any_size():
    model = straight().eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(model, (X,), dynamic_shapes={"input": {0: batch}})
    larger = torch.randn(9, 8)
    torch.testing.assert_close(program.module()(larger), model(larger))
    assert model.tagged("side").shape == (9, 2)


def test_exporting_leaves_no_symbolic_values_behind():
    model = FlowBuilder(Remember()).using("memory").tag("memory").build()
    program = torch.export.export(model, (X,))
    assert model.tagged("memory") is None
    assert torch.equal(program.module()(X), X)
    assert torch.equal(model(X), X)


def remembering():
    """A graph whose result changes with each call, without gradients."""
    shift = Shift(8, 1.0).requires_grad_(False)
    return FlowBuilder(Remember()).using("memory").through(shift).tag("memory").build()


@pytest.mark.slow
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("batch_is_dynamic", [False, True])
def test_an_exported_program_begins_with_the_initial_values(strict, batch_is_dynamic):
    model = remembering()
    fresh = model(X)
    later = model(X)
    assert not torch.equal(fresh, later)
    sizes = {0: torch.export.Dim("batch", min=2, max=64)} if batch_is_dynamic else None
    program = torch.export.export(model, (X,), dynamic_shapes={"input": sizes}, strict=strict).module()
    assert torch.equal(program(X), fresh)
    assert torch.equal(program(X), fresh)
    assert torch.equal(model.tagged("memory"), later)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_traced_program_begins_with_the_initial_values():
    model = remembering()
    fresh = model(X)
    later = model(X)
    program = torch.jit.trace(model, (X,), check_trace=False)
    assert torch.equal(program(X), fresh)
    assert torch.equal(model.tagged("memory"), later)


@pytest.mark.slow
def test_a_compiled_graph_continues_from_the_carried_values():
    model = remembering()
    model(X)
    expected = copy.deepcopy(model)(X)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(model, fullgraph=True, backend="eager")(X), expected)


def test_several_inputs_can_be_exported():
    model = FlowBuilder().input("ctx").through(Blend()).using("ctx").build()
    assert torch.equal(torch.export.export(model, (X, X)).module()(X, X), 2 * X)


def test_functional_call_and_vmap_run_an_ensemble():
    models = [FlowBuilder(nn.Linear(8, 8)).tag("entry").also(nn.Tanh()).build() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)

    def call(parameters, buffers, x: Tensor) -> Tensor:
        return torch.func.functional_call(models[0], (parameters, buffers), (x,))

    outputs = torch.vmap(call, in_dims=(0, 0, None))(parameters, buffers, X)
    for output, model in zip(outputs, models):
        torch.testing.assert_close(output, model(X))


def test_per_sample_gradients_can_be_computed():
    model = FlowBuilder(nn.Linear(8, 1)).tag("entry").build()
    parameters = dict(model.named_parameters())

    def loss(parameters, row: Tensor) -> Tensor:
        return torch.func.functional_call(model, parameters, (row.unsqueeze(0),)).sum()

    per_sample = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, X)
    torch.testing.assert_close(per_sample["entry.weight"], X.unsqueeze(1))


def test_a_traceback_shows_the_line_of_the_generated_code():
    with pytest.raises(RuntimeError) as caught:
        FlowBuilder(nn.Linear(5, 5)).build()(X)
    text = "".join(traceback.format_exception(caught.value))
    assert "linear_1 = run_linear_1(input)" in text
    assert "flodl: at 'linear_1', Linear(in_features=5, out_features=5, bias=True), given (4, 8)" in text


def test_a_module_replaced_in_the_modules_table_is_used():
    model = FlowBuilder(nn.Linear(3, 3)).tag("h").through(nn.ReLU()).build()
    x = torch.randn(2, 3)
    other = nn.Linear(3, 3)
    model._modules["h"] = other
    assert torch.equal(model(x), other(x).relu())
    del model.h
    with pytest.raises(BuildError, match="at 'h': the module of this node was deleted"):
        model(x)
    model.h = nn.Identity()
    assert torch.equal(model(x), x.relu())


def test_lazy_modules_get_their_shapes_at_the_first_call():
    model = FlowBuilder(nn.LazyLinear(4)).build(example=torch.zeros(2, 3))
    assert "0 parameters" in model.tree_summary()
    before = model.structural_hash
    model(torch.zeros(2, 3))
    assert model.structural_hash != before
    assert "16 parameters" in model.tree_summary()


@pytest.mark.parametrize("named", [{}, {"x": 1}])
def test_a_call_without_the_stream_says_how_to_call(named):
    got = "0 by position" + (f" and {next(iter(named))} by name" if named else "")
    words = f"the graph takes 1 input, got {got}. Call it as model.x.."
    with pytest.raises(InputError, match=words):
        FlowBuilder(nn.Linear(2, 2)).build()(**named)


def test_a_module_assigned_under_an_unknown_name_is_noted_once(capsys):
    model = FlowBuilder(nn.Linear(2, 2)).through(nn.Linear(2, 3)).tag("head").build()
    x = torch.zeros(1, 2)
    model.heads = nn.Linear(2, 5)
    model.loss = nn.MSELoss()
    assert model(x).shape == model(x).shape == (1, 3)
    assert capsys.readouterr().err.count("note: 'heads' is not a node of this graph") == 1
    model.head = nn.Linear(2, 5)
    assert model(x).shape == (1, 5)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("builder", "words"),
    [
        (
            FlowBuilder().switch(lambda v: (v[:, 0] > 0).long(), [torch.neg, torch.sin]),
            "at 'switch_1': torch cannot trace this switch, because Python reads its index. Pass masked=True",
        ),
        (
            FlowBuilder(FlowBuilder().loop_body(torch.neg).while_cond(ThresholdHalt(3.0), 2).build()),
            "at 'graph_1.loop_1': torch cannot trace this loop, because Python reads its condition",
        ),
    ],
)
def test_an_export_that_needs_masked_says_so(builder, words):
    with pytest.raises(GraphError) as caught:
        torch.export.export(builder.build(), (torch.ones(2, 2),))
    assert words in str(caught.value)

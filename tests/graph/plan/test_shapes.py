"""Nothing is broadcast silently: sums, means, maxima and products of values whose shapes differ."""

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, SoftmaxRouter, ThresholdHalt
from flodl.core import GraphError, LoopError, RouteError, ShapeError

X = torch.ones(4, 16)


def narrow():
    return nn.Linear(16, 1)


def wide():
    return nn.Linear(16, 8)


MERGES = {
    "also": (lambda: FlowBuilder().also(narrow()), "at 'add_1': cannot add 'input' of shape", "a + b"),
    "also_with": (lambda: FlowBuilder().also_with(narrow(), wide()), "at 'add_1': cannot add ", "a + b"),
    "add": (lambda: split().merge("add"), "at 'merge_1': cannot add ", "a + b"),
    "mean": (lambda: split().merge("mean"), "at 'merge_1': cannot average ", "(a + b) / 2"),
    "max": (lambda: split().merge("max"), "at 'merge_1': cannot take the maximum of ", "torch.maximum(a, b)"),
    "mul": (lambda: split(lambda x: x[:, 0]).merge("mul"), "at 'merge_1': cannot multiply ", "a * b"),
}


def split(other=None):
    return FlowBuilder().split([nn.Linear(16, 8), other or narrow()])


@pytest.mark.parametrize("merge", MERGES)
def test_merging_different_shapes_raises_with_both_shapes_and_the_path(merge):
    make, words, broadcast = MERGES[merge]
    with pytest.raises(ShapeError) as caught:
        make().build()(X)
    assert str(caught.value).startswith(words)
    assert "of shape (4," in str(caught.value)
    assert f"merge(lambda a, b: {broadcast})" in str(caught.value)
    with pytest.raises(ShapeError, match="cannot"):
        make().build(example=X)


def test_the_path_leads_through_the_graphs_around():
    inner = FlowBuilder().also(narrow()).tag("residual").label("encoder").build()
    with pytest.raises(ShapeError, match=r"at 'encoder.residual': cannot add 'input' of shape \(4, 16\)"):
        FlowBuilder(inner).build()(X)


@pytest.mark.parametrize("shape", [(4,), (16,), (1, 16), (4, 1), (1, 4, 16), ()])
def test_a_shape_that_torch_would_broadcast_is_rejected(shape):
    with pytest.raises(ShapeError, match="cannot add"):
        FlowBuilder().also(lambda x: x.new_ones(shape)).build()(X)


def test_numbers_and_own_functions_broadcast():
    assert torch.equal(FlowBuilder().also(lambda x: 0.5).build()(X), X + 0.5)
    model = FlowBuilder().split([nn.Identity(), lambda x: x[:, :1]]).merge(lambda a, b: a + b).build()
    assert torch.equal(model(X), 2 * X)


@pytest.mark.parametrize("gate", [lambda x: x[:, :1], lambda x: x[:1], lambda x: x[:1, :1]])
def test_a_product_takes_a_gate_of_size_one(gate):
    model = FlowBuilder().split([nn.Identity(), gate]).merge("mul").build()
    assert torch.equal(model(2 * X), 4 * X)


def test_nested_tensors_are_added():
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    total = FlowBuilder().also(lambda x: 2 * x).build()(nested)
    assert torch.equal(total.values(), 3 * nested.values())


@pytest.mark.slow
def test_the_check_of_shapes_compiles_and_exports_for_any_batch_size():
    model = FlowBuilder(nn.Linear(16, 8)).also(nn.Linear(8, 8)).split([nn.Tanh(), nn.GELU()])
    model = model.merge("max").split([nn.Tanh(), lambda x: x[:, :1]]).merge("mul").build()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    batch = torch.export.Dim("batch")
    exported = torch.export.export(model, (X,), dynamic_shapes=({0: batch},)).module()
    for size in (4, 7, 5):
        x = torch.randn(size, 16)
        assert torch.allclose(compiled(x), model(x))
        assert torch.allclose(exported(x), model(x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by the compiler
def test_a_compiled_graph_does_not_broadcast_silently_either():
    model = FlowBuilder().also(narrow()).build()
    with pytest.raises(ShapeError, match="cannot add 'input'"):
        torch.compile(model, backend="eager")(X)
    with pytest.raises(ShapeError, match="cannot add 'input'"):
        torch.export.export(model, (X,))


@pytest.mark.slow
def test_sizes_that_torch_does_not_know_while_tracing_are_not_needed():
    model = FlowBuilder(lambda x: x[x.sum(1) > 0]).also(nn.Linear(16, 16)).build()
    exported = torch.export.export(model, (X,)).module()
    assert torch.allclose(exported(X), model(X))


def test_a_reference_of_another_shape_is_not_added_to_the_stream_of_a_router():
    flow = FlowBuilder().fork(narrow()).tag("side")
    model = flow.gate(SoftmaxRouter(16, 2), [nn.Identity(), nn.Identity()]).using("side").build()
    with pytest.raises(RouteError) as caught:
        model(X)
    assert str(caught.value) == (
        "at 'gate_1.router': the reference 'side' has shape (4, 1), the stream (4, 16). "
        "SoftmaxRouter adds them, so they need the same shape."
    )


@pytest.mark.parametrize("masked", [False, True])
def test_a_state_without_a_row_per_sample_does_not_stop_sample_by_sample(masked):
    # Two tensors, as an LSTM has: [layers, batch, width].
    flow = FlowBuilder(lambda x: (x, x[None])).loop_body(lambda state: (state[0] + 1, state[1] + 1))
    model = flow.until_cond(ThresholdHalt(3.0, per_sample=True), 5, masked=masked).build()
    with pytest.raises(LoopError, match=r"of 4 samples, but a state has shape \(1, 4, 16\)"):
        model(torch.arange(4.0)[:, None].expand(4, 16))


def test_a_learned_halt_does_not_add_up_states_of_different_shapes():
    class Halt(nn.Module):
        weighs_turns = True

        def forward(self, state):
            return state.flatten(1).mean(1)

    model = FlowBuilder().loop_body(lambda x: x[:, :1]).while_cond(Halt(), 3).build()
    with pytest.raises(LoopError, match=r"at 'loop_1.body': the body changes the state from shape"):
        model(X[:, :2])
    assert issubclass(LoopError, GraphError)


@pytest.mark.parametrize("other", [lambda x: (x, x), lambda x: [x], lambda x: None, nn.LSTM(16, 16)])
@pytest.mark.parametrize("merge", ["add", "mean", "max", "mul"])
def test_a_branch_that_returns_no_tensor_is_named(merge, other):
    model = FlowBuilder().split({"one": nn.Identity(), "two": other}).merge(merge).build()
    with pytest.raises(
        ShapeError, match=r"at 'merge_1': cannot .* 'two' \(.*\). Each branch has to return one"
    ):
        model(X)


def test_tuples_are_not_concatenated_by_a_sum():
    with pytest.raises(ShapeError, match=r"at 'add_1': cannot add 'lambda_1' \(a tuple of 1 value\), "):
        FlowBuilder(lambda x: (x,)).also(lambda x: (x[0], x[0])).build()(X)


@pytest.mark.parametrize(
    ("other", "dim", "rule"),
    [
        (nn.Identity(), 2, r"along dimension 2. They have 2 dimensions: use dim from -2 to 1."),
        (
            nn.Linear(16, 3),
            0,
            r"'linear_1' of shape \(4, 3\) along dimension 0. All other dimensions need the same",
        ),
        (
            lambda x: x.sum(),
            -1,
            r"of shape \(\) .* All of them need the same number of dimensions, at least 1.",
        ),
        (lambda x: (x, x), -1, r"'lambda_1' \(a tuple of 2 values\). Each branch has to return one tensor"),
    ],
)
def test_values_that_cannot_be_concatenated_are_named(other, dim, rule):
    flow = FlowBuilder().split([nn.Identity(), other]).merge("cat", dim=dim)
    with pytest.raises(ShapeError, match=rf"at 'merge_1': cannot concatenate 'identity_1' of shape .*{rule}"):
        flow.build()(X)
    with pytest.raises(ShapeError, match="cannot concatenate"):
        FlowBuilder().split([nn.Identity(), other]).merge("cat", dim=dim).build(example=X)


def test_an_error_of_a_merge_function_says_that_it_got_a_list():
    with pytest.raises(TypeError) as caught:
        FlowBuilder().split([nn.Identity(), nn.Identity()]).merge(lambda values: values + 1).build()(X)
    assert caught.value.__notes__ == ["flodl: at 'merge_1', given the list (4, 16), (4, 16)"]

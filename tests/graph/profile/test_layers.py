"""The summary of a model: shapes, parameters, FLOPs and times of its modules."""

import json

import pytest
import torch
from torch import nn

import flodl
from flodl import FlowBuilder
from flodl.core import InputError, PathError

X = torch.randn(8, 4)


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


def test_it_has_shapes_parameters_flops_and_times():
    found = flodl.summary(two_layers(), X)
    first = found["0"]
    assert (first.input_shape, first.output_shape) == ("8 × 4", "8 × 16")
    assert (first.parameters, first.flops, first.calls) == (80, 2 * 8 * 4 * 16, 1)
    assert found["1"].flops == 0
    assert found.parameters == 114
    assert found.flops == 2 * 8 * 4 * 16 + 2 * 8 * 16 * 2
    assert found.num_bytes == 4 * 114
    assert 0 < first.seconds < found.seconds


def test_containers_contain_what_is_inside_them():
    model = nn.Sequential(two_layers(), nn.Linear(2, 1))
    found = flodl.summary(model, X)
    assert found["0"].flops == found["0.0"].flops + found["0.2"].flops
    assert found["0"].parameters == 114
    assert found["0.2"].depth == 1


def test_the_depth_limits_the_rows_but_not_the_totals():
    model = nn.Sequential(two_layers(), nn.Linear(2, 1))
    shallow, deep = flodl.summary(model, X, depth=1), flodl.summary(model, X, depth=None)
    assert [row.path for row in shallow.rows] == ["0", "1"]
    assert len(deep.rows) == 5
    assert shallow.flops == deep.flops


def test_a_module_that_runs_several_times_or_never_says_so():
    class Reuses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.often, self.never = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.often(self.often(x))

    found = flodl.summary(Reuses(), X)
    assert (found["often"].calls, found["often"].flops) == (2, 2 * 2 * 8 * 4 * 4)
    assert found["never"].calls == 0
    assert "Linear ×2" in str(found)
    assert "not run" in str(found)


def test_frozen_parameters_are_not_trainable():
    model = two_layers()
    model[0].requires_grad_(False)
    found = flodl.summary(model, X)
    assert (found["0"].trainable, found.trainable, found.parameters) == (0, 34, 114)
    assert "80 frozen" in str(found)


def test_attention_counts_in_evaluation_too():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    x = torch.randn(2, 5, 16)
    assert flodl.summary(layer.train(), x).flops == flodl.summary(layer.eval(), x).flops > 0


def test_a_graph_keeps_its_state_and_its_nodes_are_rows():
    def remember(x, *, memory):
        return x if memory is None else x + memory

    flow = FlowBuilder(nn.Linear(4, 4)).tag("stem").through(nn.BatchNorm1d(4))
    model = flow.through(remember).using("memory").tag("memory").build()
    model(X)
    before, tagged = model(X), model.tagged("stem")
    batches = int(model.batchnorm1d_1.num_batches_tracked)
    state = torch.get_rng_state()
    found = flodl.summary(model, X)
    assert [row.path for row in found.rows] == ["stem", "batchnorm1d_1"]
    assert int(model.batchnorm1d_1.num_batches_tracked) == batches
    assert torch.equal(model.tagged("stem"), tagged)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert model(X).shape == before.shape


def test_inputs_may_be_named():
    model = FlowBuilder(nn.Linear(4, 4)).input("ctx").through(lambda x, *, ctx: x + ctx).using("ctx").build()
    assert flodl.summary(model, X, ctx=X)["linear_1"].calls == 1


def test_it_is_plain_data_and_text():
    found = flodl.summary(two_layers(), X)
    assert json.loads(json.dumps(found.to_dict()))["rows"][0]["path"] == "0"
    lines = str(found).splitlines()
    assert lines[0] == "Sequential on cpu"
    assert lines[1].split() == ["path", "module", "input", "output", "parameters", "FLOPs", "time"]
    assert lines[-1].startswith("114 parameters (114 trainable, 456 bytes), 1.5 kFLOPs, ")


def test_an_error_in_the_model_leaves_no_hooks():
    model = two_layers()
    with pytest.raises(RuntimeError):
        flodl.summary(model, torch.randn(8, 5))
    assert not model[0]._forward_hooks


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: flodl.summary(two_layers()), "has no input"),
        (lambda: flodl.summary(X, two_layers()), "got a Tensor. Pass the model first"),
        (lambda: flodl.summary(two_layers(), X, depth=0), "depth=0"),
        (lambda: flodl.summary(two_layers(), X, repeats=0), "repeats=0"),
        (lambda: flodl.summary(nn.LazyLinear(2), X), "no shape yet"),
    ],
)
def test_mistakes_are_errors(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_an_unknown_row_suggests_others():
    with pytest.raises(PathError, match="no row '3'"):
        flodl.summary(two_layers(), X)["3"]


def test_an_input_that_does_not_fit_names_the_module_that_rejects_it() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(9, 2)))
    graph = FlowBuilder(nn.Linear(4, 4)).through(model).build()
    for one, path in ((model, "1.1"), (graph, "sequential_1.1.1")):
        with pytest.raises(RuntimeError) as caught:
            flodl.summary(one, torch.zeros(2, 4))
        expected = f"flodl: at '{path}', Linear(in_features=9, out_features=2, bias=True), given (2, 8)"
        assert caught.value.__notes__ == [expected]
    with pytest.raises(RuntimeError) as caught:
        flodl.summary(graph, torch.zeros(2, 5))
    assert caught.value.__notes__[0].endswith("given (2, 5)")


def test_the_path_that_a_graph_gives_to_a_function_is_kept() -> None:
    inner = FlowBuilder(nn.ReLU()).through(lambda x: x @ torch.zeros(9, 9)).label("inner").build()
    graph = FlowBuilder(nn.Linear(4, 4)).through(inner).build()
    with pytest.raises(RuntimeError) as called:
        graph(torch.zeros(2, 4))
    with pytest.raises(RuntimeError) as caught:
        flodl.summary(graph, torch.zeros(2, 4))
    assert caught.value.__notes__ == called.value.__notes__
    assert "at 'inner." in caught.value.__notes__[0]

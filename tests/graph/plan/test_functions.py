"""A function may use modules only if something trains and saves them."""

import copy
import functools
import gc

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flodl import FlowBuilder, SoftmaxRouter
from flodl.core import BuildError

X = torch.ones(2, 3, 4)
LINEAR = nn.Linear(4, 4)
LAYERS = [nn.Linear(4, 4)]
WEIGHT = nn.Parameter(torch.ones(4, 4))


class Encoder:
    """A callable object with a module, which is not a module itself."""

    scale = 2

    def __init__(self):
        self.net = nn.Linear(4, 4)

    def __call__(self, x):
        return self.net(x)

    def encode(self, x):
        return self.inner(x)

    def inner(self, x):
        return self.net(x) * self.scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(4, 4)
        self.width = 4

    @property
    def size(self):
        return 4

    def encode(self, x):
        return self.part(x)


NET = Net()


def calls_linear(x):
    return LINEAR(x)


def in_a_closure():
    lstm = nn.LSTM(4, 4)
    return lambda x: lstm(x)[0]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (in_a_closure(), "the function uses the LSTM 'lstm' (160 trainable parameters)"),
        (LINEAR.forward, "the function uses the Linear 'Linear' (20 trainable parameters)"),
        (functools.partial(F.linear, weight=WEIGHT), "the parameter 'weight' (16 trainable parameters)"),
        (Encoder(), "the Linear 'self.net'"),
        (Encoder().encode, "the Linear 'self.net'"),
        (calls_linear, "the Linear 'LINEAR'"),
        (lambda x: calls_linear(x), "the Linear 'LINEAR'"),
        (lambda x, *, layer=LINEAR: layer(x), "the Linear 'layer'"),
        (lambda x: x @ LINEAR.weight.T, "the parameter 'LINEAR.weight'"),
        (lambda x: LINEAR.forward(x), "the Linear 'LINEAR'"),
        (lambda x: NET.part(x), "the Linear 'NET.part'"),
        (lambda x: NET.encode(x), "the Linear 'self.part'"),
        (lambda x: LAYERS[0](x), "the Linear 'LAYERS'"),
    ],
)
def test_a_function_that_uses_a_module_outside_the_graph_raises_in_every_call(function, words):
    model = FlowBuilder(function).through(nn.Linear(4, 4)).build()
    for _ in range(2):
        with pytest.raises(BuildError) as caught:
            model(X)
    assert words in caught.value.message
    assert "neither trained nor saved" in caught.value.message
    assert caught.value.path == model.spec.nodes[1].key


def test_the_error_says_what_to_do():
    with pytest.raises(BuildError, match="Pass the module itself, not its method"):
        FlowBuilder(LINEAR.forward).build()(X)
    with pytest.raises(BuildError, match=r"Make it a node, through\(LINEAR\)"):
        FlowBuilder(calls_linear).build()(X)


class Wrapped:
    def __init__(s):
        s.layer = nn.Linear(4, 4)

    def apply(s, x):
        return s.layer(x)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda x: LAYERS[0](x), "'LAYERS'"),
        (functools.partial(lambda layer, x: layer(x), nn.Linear(4, 4)), "'argument 0'"),
        (functools.partial(lambda x, layer: layer(x), layer=nn.Linear(4, 4)), "'layer'"),
        (Wrapped().apply, "'s.layer'"),
        (Encoder(), "'self.net'"),
        (lambda x, *, layer=LINEAR: layer(x), "'layer'"),
    ],
)
def test_a_name_that_means_nothing_outside_of_the_function_is_not_part_of_the_advice(function, named):
    with pytest.raises(BuildError, match=r"Make this module a node, followed by the function, or") as caught:
        FlowBuilder(function).build()(X)
    assert named in caught.value.message
    assert "through(" not in caught.value.message


def test_the_name_of_a_variable_in_the_same_function_is_part_of_the_advice():
    with pytest.raises(BuildError, match=r"through\(lstm\)"):
        FlowBuilder(in_a_closure()).build()(X)
    with pytest.raises(BuildError, match=r"through\(NET\.part\)"):
        FlowBuilder(lambda x: NET.part(x)).build()(X)


def test_parts_merges_and_initial_values_are_checked_too():
    for builder, path in [
        (FlowBuilder().gate(SoftmaxRouter(4, 2), [calls_linear, torch.neg]), "gate_1.expert_0"),
        (FlowBuilder().loop_body(calls_linear).for_n(2), "loop_1.body"),
        (FlowBuilder().split([torch.neg, torch.sin]).merge(lambda a, b: LINEAR(a) + b), "merge_1"),
        (FlowBuilder(lambda x, *, m: x + m).using("m", init=calls_linear).tag("m"), "state_m"),
        (FlowBuilder(FlowBuilder(calls_linear).build()), "graph_1.calls_linear_1"),
    ]:
        with pytest.raises(BuildError, match="neither trained nor saved") as caught:
            builder.build()(X)
        assert caught.value.path == path


@torch.no_grad()
def decorated(x):
    return LINEAR(x)


def without_gradient(x):
    with torch.no_grad():
        return LINEAR(x)


FROZEN = nn.Linear(4, 4).requires_grad_(False)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: FROZEN(x),
        decorated,
        without_gradient,
        lambda x: x @ LINEAR.weight.detach(),
        lambda x: x * NET.width,
        lambda x: x * NET.size,
        lambda x: x * len(list(NET.parameters())),
        functools.partial(torch.sum, dim=1),
        F.relu,
    ],
)
def test_a_function_that_trains_nothing_is_accepted(function):
    FlowBuilder(function).build()(X)


def test_a_module_that_is_also_a_node_may_be_used_by_a_function():
    embedding = nn.Embedding(5, 4)
    decoder = FlowBuilder(lambda x: x @ embedding.weight.T).build()
    assert FlowBuilder(embedding).through(decoder).build()(torch.tensor([[1, 2]])).shape == (1, 2, 5)
    assert FlowBuilder(LINEAR).through(lambda x: x @ LINEAR.weight).build()(X).shape == X.shape


def test_a_module_of_a_model_that_contains_the_graph_may_be_used_by_a_function():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.graph = FlowBuilder(lambda x: self.linear(x)).through(self.twice).build()

        def twice(self, x):
            return 2 * self.linear(x)

        def forward(self, x):
            return self.graph(x)

    gc.freeze()
    try:
        assert Model()(X).shape == X.shape
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_a_module_that_an_optimizer_trains_may_be_used_by_a_function():
    linear = nn.Linear(4, 4)
    groups = [{"params": [linear.weight]}, {"params": [linear.bias]}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    assert FlowBuilder(lambda x: linear(x)).build()(X).shape == X.shape
    assert optimizer.param_groups


def test_functions_are_checked_in_the_first_call_with_gradients():
    model = FlowBuilder(calls_linear).build()
    with torch.no_grad():
        assert model(X).shape == X.shape
    with torch.inference_mode():
        assert model(X).shape == X.shape
    with pytest.raises(BuildError, match="neither trained nor saved"):
        model(X)


class Decoder(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def forward(self, x):
        return x @ self.embedding.weight


def test_a_copy_whose_function_uses_the_weights_of_the_original_is_refused_with_the_fix():
    model = FlowBuilder(LINEAR).through(lambda x: x @ LINEAR.weight).build(example=X)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(X)
    for copied in (copy.deepcopy(model), copy.deepcopy(copy.deepcopy(model))):
        with (
            torch.no_grad(),
            pytest.raises(BuildError, match="is a copy, and its function uses the parameter"),
        ):
            copied.eval()(X)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    with torch.inference_mode(), pytest.raises(BuildError, match=r"small nn\.Module that contains 'LINEAR"):
        averaged(X)
    assert optimizer.param_groups


def test_a_copy_of_a_graph_that_is_gone_is_checked_like_any_graph():
    def build():
        linear = nn.Linear(4, 4)
        return FlowBuilder(linear).through(lambda x: x @ linear.weight).build()

    copied = copy.deepcopy(build())
    gc.collect()
    with pytest.raises(BuildError, match="not part of the graph"):
        copied(X)


def test_a_copy_is_refused_if_its_function_uses_a_part_of_the_module_around_the_original():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = part = nn.Linear(4, 4)
            self.flow = FlowBuilder(nn.Linear(4, 4)).through(lambda x: x @ part.weight).build()

        def forward(self, x):
            return self.flow(x)

    model = Around()
    assert model(X).shape == X.shape
    with pytest.raises(BuildError, match="is a copy"):
        copy.deepcopy(model)(X)


def test_copies_run_whose_functions_use_only_frozen_or_shared_modules():
    tied = nn.Linear(4, 4)
    model = FlowBuilder(tied).through(Decoder(tied)).build()
    assert torch.equal(copy.deepcopy(model)(X), model(X))
    frozen = nn.Linear(4, 4).requires_grad_(False)
    model = FlowBuilder(frozen).through(lambda x: x @ frozen.weight).build()
    assert torch.equal(copy.deepcopy(model)(X), model(X))
    linear = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    model = FlowBuilder(nn.Linear(4, 4)).through(lambda x: x @ linear.weight).build()
    assert torch.equal(copy.deepcopy(model)(X), model(X))
    assert torch.equal(copy.copy(model)(X), model(X))
    assert optimizer.param_groups

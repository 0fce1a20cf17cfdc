"""Two hashes: one for what a graph computes, one for which weights it can load."""

import copy
import functools
import operator

import pytest
import torch
from torch import Tensor, nn

from flodl import (
    ArgmaxSelector,
    FixedSelector,
    FlowBuilder,
    LearnedHalt,
    SigmoidRouter,
    SoftmaxRouter,
    ThresholdHalt,
    TopKRouter,
)
from flodl.core import CheckpointError

from ..nodes import Double, Remember, Shift, Total, Triple, double, triple

FACTOR = 2.0


def by_global(x: Tensor) -> Tensor:
    return x * FACTOR


def by_helper(x: Tensor) -> Tensor:
    return by_global(x) + 1


def times(factor):
    return lambda x: x * factor


class Scaled:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.factor

    def method(self, x: Tensor) -> Tensor:
        return x * self.factor


def two(first, second):
    return FlowBuilder().split([first, second])


def loop():
    return FlowBuilder().loop_body(double)


DIFFERENT = {
    "another function": [FlowBuilder(double), FlowBuilder(triple)],
    "another module": [FlowBuilder(Double()), FlowBuilder(Triple())],
    "another builtin": [FlowBuilder(torch.relu), FlowBuilder(torch.tanh)],
    "another tensor method": [FlowBuilder(torch.Tensor.relu), FlowBuilder(torch.Tensor.tanh)],
    "another body of a lambda": [FlowBuilder(lambda x: x * 2), FlowBuilder(lambda x: x / 2)],
    "another constant of a lambda": [FlowBuilder(lambda x: x * 2), FlowBuilder(lambda x: x * 3)],
    "another set in a lambda": [FlowBuilder(lambda x: x.dim() in {1}), FlowBuilder(lambda x: x.dim() in {2})],
    "another closure": [FlowBuilder(times(2)), FlowBuilder(times(3))],
    "a module in a closure": [FlowBuilder(times(nn.Linear(2, 2))), FlowBuilder(times(nn.Linear(2, 3)))],
    "another default": [FlowBuilder(lambda x, y=2: x * y), FlowBuilder(lambda x, y=3: x * y)],
    "another keyword default": [FlowBuilder(lambda x, *, y=2: x * y), FlowBuilder(lambda x, *, y=3: x * y)],
    "another inner function": [
        FlowBuilder(lambda x: (lambda y: y * 2)(x)),
        FlowBuilder(lambda x: (lambda y: y * 3)(x)),
    ],
    "another partial": [
        FlowBuilder(functools.partial(torch.mul, other=2)),
        FlowBuilder(functools.partial(torch.mul, other=3)),
    ],
    "another callable object": [FlowBuilder(Scaled(2)), FlowBuilder(Scaled(3))],
    "another bound method": [FlowBuilder(Scaled(2).method), FlowBuilder(Scaled(3).method)],
    "another item": [FlowBuilder(operator.itemgetter(0)), FlowBuilder(operator.itemgetter(1))],
    "another setting": [FlowBuilder(nn.Dropout(0.1)), FlowBuilder(nn.Dropout(0.2))],
    "another eps": [FlowBuilder(nn.LayerNorm(4)), FlowBuilder(nn.LayerNorm(4, eps=1e-3))],
    "another variant": [FlowBuilder(nn.GELU()), FlowBuilder(nn.GELU(approximate="tanh"))],
    "another stride": [FlowBuilder(nn.Conv1d(2, 2, 3)), FlowBuilder(nn.Conv1d(2, 2, 3, stride=2))],
    "another width": [FlowBuilder(nn.Linear(2, 2)), FlowBuilder(nn.Linear(2, 3))],
    "no bias": [FlowBuilder(nn.Linear(2, 2)), FlowBuilder(nn.Linear(2, 2, bias=False))],
    "another depth": [
        FlowBuilder(nn.Sequential(nn.Linear(2, 2))),
        FlowBuilder(nn.Sequential(nn.Linear(2, 2), nn.ReLU())),
    ],
    "number of iterations": [loop().for_n(3), loop().for_n(5)],
    "kind of loop": [
        loop().for_n(3),
        loop().while_cond(ThresholdHalt(1.0), 3),
        loop().until_cond(ThresholdHalt(1.0), 3),
        loop().until_cond(ThresholdHalt(2.0), 3),
        loop().until_cond(ThresholdHalt(1.0, per_sample=True), 3),
        loop().until_cond(ThresholdHalt(1.0), 3, masked=True),
        loop().until_cond(LearnedHalt(2), 3),
        loop().until_cond(lambda x: x.sum(), 3),
        FlowBuilder().loop_body(triple).for_n(3),
    ],
    "merge operation": [
        two(double, triple).merge("add"),
        two(double, triple).merge("mean"),
        two(double, triple).merge("mul"),
        two(double, triple).merge("max"),
        two(double, triple).merge("cat"),
        two(double, triple).merge("cat", dim=0),
        two(double, triple).merge(lambda a, b: a - b),
        two(double, triple).merge(lambda a, b: b - a),
        two(double, triple).merge(lambda parts: parts[0]),
        two(triple, double).merge("cat"),
    ],
    "kind of map": [
        FlowBuilder().map(double).each(),
        FlowBuilder().map(double, batched=True).each(),
        FlowBuilder().map(double).slices(2),
        FlowBuilder().map(double).slices(4),
        FlowBuilder().map(triple).each(),
    ],
    "router": [
        FlowBuilder().gate(SoftmaxRouter(2, 2), [double, triple]),
        FlowBuilder().gate(SoftmaxRouter(2, 2, dim=1), [double, triple]),
        FlowBuilder().gate(SigmoidRouter(2, 2), [double, triple]),
        FlowBuilder().gate(TopKRouter(2, 2, k=1), [double, triple]),
        FlowBuilder().gate(TopKRouter(2, 2, k=2), [double, triple]),
        FlowBuilder().gate(SoftmaxRouter(2, 2), [triple, double]),
        FlowBuilder().gate(SoftmaxRouter(2, 3), [double, triple, double]),
    ],
    "selector": [
        FlowBuilder().switch(FixedSelector(0), [double, triple]),
        FlowBuilder().switch(FixedSelector(1), [double, triple]),
        FlowBuilder().switch(FixedSelector(1), [double, triple], masked=True),
        FlowBuilder().switch(ArgmaxSelector(2, 2), [double, triple]),
        FlowBuilder().switch(ArgmaxSelector(2, 2, gradient="gumbel"), [double, triple]),
        FlowBuilder().switch(ArgmaxSelector(2, 2, gradient="straight_through"), [double, triple]),
    ],
    "wiring": [
        FlowBuilder(double).through(triple),
        FlowBuilder(triple).through(double),
        FlowBuilder(double).also(triple),
        FlowBuilder().also_with(double, triple),
        FlowBuilder(double).fork(triple).tag("side"),
        FlowBuilder(double).tag("x").through(triple).map(double).over("x"),
    ],
    "references": [
        FlowBuilder(double).tag("a").through(triple).tag("b").through(Total()).using("a"),
        FlowBuilder(double).tag("b").through(triple).tag("a").through(Total()).using("a"),
        FlowBuilder(double).tag("a").through(triple).tag("b").through(Total()),
    ],
    "first value": [
        FlowBuilder(Remember()).using("memory").tag("memory"),
        FlowBuilder(Remember()).using("memory", init="zeros").tag("memory"),
        FlowBuilder(Remember()).using("memory", init=torch.zeros(2)).tag("memory"),
        FlowBuilder(Remember()).using("memory", init=torch.zeros(3)).tag("memory"),
        FlowBuilder(Remember()).using("memory", init=nn.Parameter(torch.zeros(2))).tag("memory"),
        FlowBuilder(Remember()).using("memory", init=times(0)).tag("memory"),
        FlowBuilder(Remember()).using("memory", init=times(1)).tag("memory"),
        FlowBuilder(Remember()).using("memory").through(double).tag("memory"),
    ],
    "declared inputs": [FlowBuilder(), FlowBuilder().input("a"), FlowBuilder().input("a", "b")],
    "a nested graph": [
        FlowBuilder(FlowBuilder(double).build()),
        FlowBuilder(FlowBuilder(triple).build()),
        FlowBuilder().loop_body(FlowBuilder(double).build()).for_n(2),
        FlowBuilder().loop_body(FlowBuilder(triple).build()).for_n(2),
    ],
}


@pytest.mark.parametrize("flows", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_what_changes_the_function_changes_the_structural_hash(flows):
    hashes = [flow.build().structural_hash for flow in flows]
    assert len(set(hashes)) == len(hashes) > 1


def test_a_global_that_a_function_reads_counts(monkeypatch):
    before = [FlowBuilder(function).build().structural_hash for function in (by_global, by_helper)]
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    after = [FlowBuilder(function).build().structural_hash for function in (by_global, by_helper)]
    assert not set(before) & set(after)


def test_a_function_that_calls_itself_can_be_hashed():
    def countdown(x: Tensor, left: int = 2) -> Tensor:
        return x if left == 0 else countdown(x * 2, left - 1)

    assert len(FlowBuilder(countdown).build().structural_hash) == 64


def tied(shared: bool):
    first = nn.Linear(2, 2)
    return FlowBuilder(first).through(nn.ReLU()).through(first if shared else nn.Linear(2, 2)).build()


def test_tied_weights_change_the_structural_hash():
    assert tied(True).structural_hash != tied(False).structural_hash
    assert tied(True).weights_hash == tied(False).weights_hash


def test_a_part_that_appears_twice_in_a_container_counts_twice():
    act, linear = nn.ReLU(), nn.Linear(2, 2)
    once = FlowBuilder(nn.Sequential(act, linear)).build()
    twice = FlowBuilder(nn.Sequential(act, linear, act)).build()
    separate = FlowBuilder(nn.Sequential(nn.ReLU(), linear, nn.ReLU())).build()
    assert once.structural_hash != twice.structural_hash == separate.structural_hash


def varied(*, label="a", hidden="hidden", bias=0.0):
    flow = FlowBuilder(Shift(2, bias)).tag(hidden).through(lambda x: x * 2).label(label)
    return flow.loop_body(FlowBuilder(nn.Linear(2, 2)).label(f"{label}_body").build()).for_n(2).build()


@pytest.mark.parametrize(
    "same",
    [
        lambda: varied(label="b"),
        lambda: varied(hidden="other"),
        lambda: varied(bias=3.0),
        lambda: varied().double(),
        lambda: varied().to("meta"),
        lambda: varied().eval(),
        lambda: varied().requires_grad_(False),
        lambda: _called(varied()),
    ],
)
def test_names_values_devices_and_modes_do_not_count(same):
    assert same().structural_hash == varied().structural_hash
    if same().tags == varied().tags and same().label == varied().label:
        assert same().weights_hash == varied().weights_hash


def _called(model):
    model(torch.ones(1, 2))
    return model


def test_the_hash_is_the_same_in_another_process_and_64_hex_digits():
    first, second = (varied().structural_hash for _ in range(2))
    assert first == second
    assert len(first) == 64
    assert int(first, 16) >= 0


MODELS = {
    "linear": lambda: FlowBuilder(nn.Linear(2, 2)).build(),
    "linear and relu": lambda: FlowBuilder(nn.Linear(2, 2)).through(nn.ReLU()).build(),
    "wider": lambda: FlowBuilder(nn.Linear(2, 3)).build(),
    "tagged": lambda: FlowBuilder(nn.Linear(2, 2)).tag("head").build(),
    "two": lambda: FlowBuilder(nn.Linear(2, 2)).through(nn.Linear(2, 2)).build(),
    "no bias": lambda: FlowBuilder(nn.Linear(2, 2, bias=False)).build(),
    "double precision": lambda: FlowBuilder(nn.Linear(2, 2)).build().double(),
    "in a loop": lambda: FlowBuilder().loop_body(nn.Linear(2, 2)).for_n(2).build(),
    "in a longer loop": lambda: FlowBuilder().loop_body(nn.Linear(2, 2)).for_n(3).build(),
}


@pytest.mark.parametrize("giver", MODELS)
@pytest.mark.parametrize("taker", MODELS)
def test_equal_weights_hashes_mean_that_weights_can_be_loaded(giver, taker, tmp_path):
    source, target = MODELS[giver](), MODELS[taker]()
    source.save_checkpoint(tmp_path / "weights.fdl")
    try:
        target.load_checkpoint(tmp_path / "weights.fdl")
        loads = True
    except CheckpointError:
        loads = False
    assert loads == (source.weights_hash == target.weights_hash)


def test_attributes_that_a_module_changes_while_it_runs_do_not_count():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            self.last = x.detach()
            return x

    model = FlowBuilder(FlowBuilder(Counting()).label("inner").build()).build()
    before = model.structural_hash
    model(torch.zeros(2))
    assert model.structural_hash == before == copy.deepcopy(model).structural_hash
    model.subgraph("inner").counting_1 = nn.ReLU()
    assert model.structural_hash != before

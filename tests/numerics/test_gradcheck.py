"""Every construct has the gradients that finite differences find, alone and inside another graph."""

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
from flodl.graph.build import LoopBuilder

WIDTH = 2


def linear(out: int = WIDTH) -> nn.Linear:
    return nn.Linear(WIDTH, out)


def remember(x: Tensor, memory: Tensor | None = None) -> Tensor:
    return x if memory is None else x + memory.tanh()


def add(x: Tensor, ctx: Tensor) -> Tensor:
    return x + ctx.tanh()


def split() -> FlowBuilder:
    return FlowBuilder().split([linear(), linear()])


def loop() -> LoopBuilder:
    return FlowBuilder().loop_body(nn.Sequential(linear(), nn.Tanh()))


def experts() -> list[nn.Module]:
    return [linear(), linear(), linear()]


def per_sample(x: Tensor) -> Tensor:
    return x.sum(1) - 0.3


CONSTRUCTS = {
    "through": lambda: FlowBuilder(linear()).through(nn.Tanh()),
    "also": lambda: FlowBuilder(linear()).also(linear()),
    "also_with": lambda: FlowBuilder().also_with(linear(), linear()),
    "fork": lambda: FlowBuilder(linear()).fork(linear()).tag("ctx").through(add).using("ctx"),
    "add": lambda: split().merge("add"),
    "mean": lambda: split().merge("mean"),
    "mul": lambda: split().merge("mul"),
    "max": lambda: split().merge("max"),
    "cat": lambda: split().merge("cat").through(nn.Linear(2 * WIDTH, WIDTH)),
    "cat rows": lambda: split().merge("cat", dim=0).through(lambda x: x[:3] * x[3:]),
    "callable": lambda: split().merge(lambda a, b: a * b - b),
    "reference": lambda: FlowBuilder(linear()).tag("ctx").through(linear()).through(add).using("ctx"),
    "for": lambda: loop().for_n(3),
    "while": lambda: loop().while_cond(lambda x: x.sum() - 100, 3),
    "while per sample": lambda: loop().while_cond(per_sample, 3),
    "while masked": lambda: loop().while_cond(per_sample, 3, masked=True),
    "until": lambda: loop().until_cond(ThresholdHalt(0.5), 3),
    "until per sample": lambda: loop().until_cond(ThresholdHalt(0.5, per_sample=True), 3),
    "until masked": lambda: loop().until_cond(ThresholdHalt(0.5, per_sample=True), 3, masked=True),
    "while learned": lambda: loop().while_cond(LearnedHalt(WIDTH), 3),
    "until learned": lambda: loop().until_cond(LearnedHalt(WIDTH), 3),
    "softmax gate": lambda: FlowBuilder().gate(SoftmaxRouter(WIDTH, 3), experts()),
    "sigmoid gate": lambda: FlowBuilder().gate(SigmoidRouter(WIDTH, 3), experts()),
    "top-k gate": lambda: FlowBuilder().gate(TopKRouter(WIDTH, 3), experts()),
    "gate with reference": lambda: (
        FlowBuilder(linear()).tag("ctx").gate(SoftmaxRouter(WIDTH, 3), experts()).using("ctx")
    ),
    "fixed switch": lambda: FlowBuilder().switch(FixedSelector(1), experts()),
    "switch": lambda: FlowBuilder().switch(ArgmaxSelector(WIDTH, 3), experts()),
    "masked switch": lambda: FlowBuilder().switch(ArgmaxSelector(WIDTH, 3), experts(), masked=True),
    "map each": lambda: FlowBuilder().map(linear()).each(),
    "map over": lambda: FlowBuilder(linear()).tag("x").through(nn.Tanh()).map(linear()).over("x"),
    "map slices": lambda: FlowBuilder().map(nn.Linear(1, 1)).slices(2),
    "map batched": lambda: FlowBuilder().map(nn.Linear(1, 1), batched=True).slices(2),
    "carried": lambda: FlowBuilder(remember).using("memory").through(linear()).tag("memory"),
    "carried from a parameter": lambda: (
        FlowBuilder(remember)
        .using("memory", init=nn.Parameter(torch.full((WIDTH,), 0.2)))
        .through(linear())
        .tag("memory")
    ),
}


def alone(flow: FlowBuilder) -> nn.Module:
    return flow.build()


def nested(flow: FlowBuilder) -> nn.Module:
    inner = flow.label("inner").build()
    return FlowBuilder(linear()).also(inner).loop_body(inner).for_n(2).build()


@pytest.mark.parametrize("place", [alone, nested])
@pytest.mark.parametrize("construct", CONSTRUCTS.values(), ids=CONSTRUCTS.keys())
def test_gradients_agree_with_finite_differences(construct, place):
    torch.manual_seed(3)
    model = place(construct()).double()
    names = [name for name, _ in model.named_parameters()]
    stream = torch.randn(3, WIDTH, dtype=torch.float64, requires_grad=True)

    def two_calls(stream: Tensor, *values: Tensor) -> Tensor:
        model.reset_state()
        parameters = dict(zip(names, values))
        first = torch.func.functional_call(model, parameters, (stream,))
        return first + torch.func.functional_call(model, parameters, (stream * 0.5,))

    # Whole Jacobians for the construct itself; nested, projections of them, which take a tenth of the time.
    assert torch.autograd.gradcheck(two_calls, (stream, *model.parameters()), fast_mode=place is nested)

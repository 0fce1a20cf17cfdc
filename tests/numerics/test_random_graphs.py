"""Random graphs compute what the same model computes when it is written by hand, forward and backward."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from .plans import (
    WIDTH,
    Also,
    Carry,
    Cell,
    Chain,
    Fork,
    Gate,
    Halt,
    Map,
    Repeat,
    Sine,
    Split,
    Switch,
    Tag,
    Through,
)

OPERATIONS = ["add", "mean", "mul", "max", "cat", "callable"]
FIRST_VALUES = [None, "zeros", torch.full((WIDTH,), 0.3, dtype=torch.float64), torch.cos]


@st.composite
def parts(draw, depth: int, *, state: bool, rowwise: bool):
    """A cell, a function, or while there is depth left, a chain; the flags say what may happen inside."""
    kind = draw(st.sampled_from(["cell", "cell", "sine", "chain"] if depth > 0 else ["cell", "sine"]))
    if kind == "chain":
        return draw(chains(depth - 1, state=state, rowwise=rowwise))
    return Cell() if kind == "cell" else Sine()


def some(names: list[str]):
    """Up to two of the names, each once."""
    if not names:
        return st.just(())
    return st.lists(st.sampled_from(names), unique=True, max_size=2).map(tuple)


KINDS = ["through", "nested", "also", "also_with", "fork", "split", "tag", "carry", "repeat", "halt"]
KINDS += ["gate", "switch", "map"]


@st.composite
def chains(draw, depth: int, *, state: bool = True, rowwise: bool = False, inputs: tuple[str, ...] = ()):
    """Steps that keep the width; `state` allows carried values, `rowwise` forbids looking at the batch."""
    steps: list = []
    names: list[str] = list(inputs)
    owed: list[str] = []

    def part(**flags):
        return draw(parts(depth, **{"state": state, "rowwise": rowwise, **flags}))

    def fresh() -> str:
        return f"level{depth}_{len(steps)}"

    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(KINDS))
        if kind == "through":
            steps.append(Through([Cell()], draw(some(names))))
        elif kind == "nested" and depth > 0:
            refs = draw(some(names))
            inner = draw(chains(depth - 1, state=state, rowwise=rowwise, inputs=refs))
            steps.append(Through([inner], refs))
        elif kind == "also":
            steps.append(Also([part()]))
        elif kind == "also_with":
            steps.append(Also([part(), part()]))
        elif kind == "fork":
            steps.append(Fork([part()], fresh()))
            names.append(steps[-1].name)
        elif kind == "split":
            count = draw(st.integers(2, 3))
            refs = draw(some(names))
            branches = [Cell() if refs else part() for _ in range(count)]
            steps.append(Split(branches, draw(st.sampled_from(OPERATIONS)), fresh(), refs))
            names += [f"{steps[-1].name}_{k}" for k in range(count)]
        elif kind == "tag":
            steps.append(Tag(owed.pop() if owed else fresh()))
            names.append(steps[-1].name)
        elif kind == "carry" and state:
            steps.append(Carry(fresh(), draw(st.sampled_from(FIRST_VALUES))))
            owed.append(steps[-1].name)
        elif kind == "repeat":
            refs = draw(some(names))
            steps.append(Repeat([Cell() if refs else part()], draw(st.integers(1, 3)), refs))
        elif kind == "halt":
            by = draw(st.sampled_from(["sample", "learned"] + ["batch"] * (not rowwise)))
            body = part(state=False, rowwise=rowwise or by != "batch")
            limit = draw(st.floats(-1, 1))
            steps.append(
                Halt([body], draw(st.integers(1, 3)), limit, by, draw(st.booleans()), draw(st.booleans()))
            )
        elif kind == "gate":
            experts = [part() for _ in range(draw(st.integers(2, 3)))]
            router = draw(st.sampled_from(["softmax", "sigmoid", "top"]))
            steps.append(Gate(experts, router, draw(some(names))))
        elif kind == "switch":
            by = draw(st.sampled_from(["fixed", "sample"] + ["batch"] * (not rowwise)))
            branches = [part(state=False, rowwise=rowwise or by == "sample") for _ in range(2)]
            steps.append(Switch(branches, by, draw(st.booleans())))
        elif kind == "map":
            how = draw(st.sampled_from(["each", "slices"]))
            body = part(rowwise=True)
            over = draw(st.sampled_from(["", *names]))
            steps.append(Map([body], how, draw(st.booleans()), over if how == "each" else ""))
    steps += [Tag(name) for name in owed]
    return Chain(steps or [Through([Cell()])], inputs)


def totals(outputs: list[Tensor]) -> Tensor:
    return sum((k + 1) * output.sin().sum() for k, output in enumerate(outputs))


def gradients(total: Tensor, of: list[Tensor]) -> list[Tensor]:
    if not total.requires_grad:
        return [torch.zeros_like(tensor) for tensor in of]
    found = torch.autograd.grad(total, of, allow_unused=True)
    return [torch.zeros_like(tensor) if grad is None else grad for tensor, grad in zip(of, found)]


def detach(chain: Chain) -> None:
    for inner in chain.each_below():
        inner.before = {name: value.detach() for name, value in inner.before.items()}


@pytest.mark.slow
@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(data=st.data())
def test_a_random_graph_equals_the_same_model_written_by_hand(data):
    torch.manual_seed(0)
    depth = data.draw(st.integers(0, 2))
    plan = data.draw(chains(depth, inputs=data.draw(st.sampled_from([(), ("ctx",)]))))
    model = plan.target.double()
    streams = [torch.randn(3, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(4)]
    detaches = data.draw(st.booleans())

    def given_to(k: int) -> dict[str, Tensor]:
        return dict.fromkeys(plan.inputs, streams[-1] * (k + 1))

    outputs, expected = [], []
    for k, stream in enumerate(streams[:3]):
        outputs.append(model(stream, **given_to(k)))
        expected.append(plan.run(stream, given_to(k)))
        if detaches:
            model.detach_state()
            detach(plan)
    for output, wanted in zip(outputs, expected):
        torch.testing.assert_close(output, wanted, rtol=1e-9, atol=1e-12)
    sources = [*model.parameters(), *streams]
    for found, wanted in zip(gradients(totals(outputs), sources), gradients(totals(expected), sources)):
        torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-10)
    for name in model.tags:
        torch.testing.assert_close(model.tagged(name), plan.before[name], rtol=1e-9, atol=1e-12)

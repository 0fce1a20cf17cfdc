"""Random models, each written twice: as calls of the builder, and by hand in plain torch.

A part has a `target` for the builder and a method `run` that computes the same from the same weights.
A step adds itself to a flow and runs itself on the stream. Nothing of flodl computes in `run`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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

WIDTH = 4


class Cell(nn.Module):
    """tanh(linear(x) + references), a part of its own width."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor, /, **refs: Tensor | None) -> Tensor:
        return self.run(x, refs)

    def run(self, x: Tensor, refs: dict[str, Tensor | None] | None = None) -> Tensor:
        x = x @ self.linear.weight.T + self.linear.bias
        for ref in (refs or {}).values():
            x = x if ref is None else x + ref
        return torch.tanh(x)

    @property
    def target(self) -> nn.Module:
        return self


class Sine:
    """A part without weights, and a plain function."""

    def __init__(self) -> None:
        self.target = torch.sin

    def run(self, x: Tensor, refs: None = None) -> Tensor:
        return torch.sin(x)


@dataclass
class Values:
    """The tags of this call and of the previous call."""

    now: dict[str, Tensor]
    before: dict[str, Tensor]

    def of(self, names: tuple[str, ...]) -> dict[str, Tensor]:
        return {name: self.now[name] for name in names}


class Chain:
    """Steps one after another; as a part, its own graph."""

    def __init__(self, steps: list[Any], inputs: tuple[str, ...] = ()) -> None:
        self.steps, self.inputs = steps, inputs
        self.before: dict[str, Tensor] = {}
        flow = FlowBuilder()
        if inputs:
            flow.input(*inputs)
        for step in steps:
            step.add(flow)
        self.target = flow.build()

    def run(self, x: Tensor, refs: dict[str, Tensor] | None = None) -> Tensor:
        values = Values(dict(refs or {}), self.before)
        for step in self.steps:
            x = step.run(x, values)
        self.before = values.now
        return x

    def each_below(self) -> list["Chain"]:
        parts = [part for step in self.steps for part in getattr(step, "parts", [])]
        return [self, *(chain for part in parts if isinstance(part, Chain) for chain in part.each_below())]


Part = Cell | Sine | Chain


@dataclass
class Tag:
    name: str

    def add(self, flow: FlowBuilder) -> None:
        flow.tag(self.name)

    def run(self, x: Tensor, values: Values) -> Tensor:
        values.now[self.name] = x
        return x


@dataclass
class Through:
    parts: list[Part]
    refs: tuple[str, ...] = ()

    def add(self, flow: FlowBuilder) -> None:
        flow.through(self.parts[0].target).using(*self.refs)

    def run(self, x: Tensor, values: Values) -> Tensor:
        return self.parts[0].run(x, values.of(self.refs))


@dataclass
class Also:
    parts: list[Part]

    def add(self, flow: FlowBuilder) -> None:
        if len(self.parts) == 1:
            flow.also(self.parts[0].target)
        else:
            flow.also_with(*(part.target for part in self.parts))

    def run(self, x: Tensor, values: Values) -> Tensor:
        skip = x if len(self.parts) == 1 else self.parts[0].run(x)
        return skip + self.parts[-1].run(x)


@dataclass
class Fork:
    parts: list[Part]
    name: str

    def add(self, flow: FlowBuilder) -> None:
        flow.fork(self.parts[0].target).tag(self.name)

    def run(self, x: Tensor, values: Values) -> Tensor:
        values.now[self.name] = self.parts[0].run(x)
        return x


@dataclass
class Split:
    parts: list[Part]
    op: str
    name: str
    refs: tuple[str, ...] = ()
    fold: nn.Linear = field(init=False)

    def __post_init__(self) -> None:
        self.fold = nn.Linear(WIDTH * len(self.parts), WIDTH)

    def add(self, flow: FlowBuilder) -> None:
        flow.split([part.target for part in self.parts]).using(*self.refs).tag_group(self.name)
        flow.merge(_least if self.op == "callable" else self.op)
        if self.op == "cat":
            flow.through(self.fold)

    def run(self, x: Tensor, values: Values) -> Tensor:
        outputs = [part.run(x, values.of(self.refs)) for part in self.parts]
        values.now |= {f"{self.name}_{k}": output for k, output in enumerate(outputs)}
        if self.op == "cat":
            return torch.cat(outputs, 1) @ self.fold.weight.T + self.fold.bias
        stacked = torch.stack(outputs)
        joined: dict[str, Callable[[], Tensor]] = {
            "add": lambda: stacked.sum(0),
            "mean": lambda: stacked.mean(0),
            "mul": lambda: stacked.prod(0),
            "max": lambda: stacked.max(0).values,
            "callable": lambda: stacked.min(0).values,
        }
        return joined[self.op]()


def _least(*outputs: Tensor) -> Tensor:
    smallest = outputs[0]
    for output in outputs[1:]:
        smallest = torch.minimum(smallest, output)
    return smallest


@dataclass
class Carry:
    """Add the value of a tag in the previous call."""

    name: str
    init: Any

    def add(self, flow: FlowBuilder) -> None:
        flow.through(Recall()).using(self.name, init=self.init)

    def run(self, x: Tensor, values: Values) -> Tensor:
        first = self.init(x) if callable(self.init) else self.init
        value = values.before.get(self.name, torch.zeros_like(x) if first in (None, "zeros") else first)
        return x + torch.sin(value)


class Recall(nn.Module):
    def forward(self, x: Tensor, /, **refs: Tensor | None) -> Tensor:
        for ref in refs.values():
            x = x if ref is None else x + torch.sin(ref)
        return x


@dataclass
class Repeat:
    parts: list[Part]
    iterations: int
    refs: tuple[str, ...] = ()

    def add(self, flow: FlowBuilder) -> None:
        flow.loop_body(self.parts[0].target).for_n(self.iterations).using(*self.refs)

    def run(self, x: Tensor, values: Values) -> Tensor:
        for _ in range(self.iterations):
            x = self.parts[0].run(x, values.of(self.refs))
        return x


@dataclass
class Halt:
    """A loop with a condition: for the batch, for each sample, or learned."""

    parts: list[Part]
    iterations: int
    limit: float
    by: str
    asks_first: bool
    masked: bool
    learned: LearnedHalt = field(init=False)

    def __post_init__(self) -> None:
        self.learned = LearnedHalt(WIDTH)

    def add(self, flow: FlowBuilder) -> None:
        loop = flow.loop_body(self.parts[0].target)
        end = loop.while_cond if self.asks_first else loop.until_cond
        if self.by == "learned":
            end(self.learned, self.iterations)
        elif self.by == "batch":
            end(lambda x: x.sum() - self.limit, self.iterations, masked=self.masked)
        else:
            end(ThresholdHalt(self.limit, per_sample=True), self.iterations, masked=self.masked)

    def run(self, x: Tensor, values: Values) -> Tensor:
        if self.by == "learned":
            return torch.cat([self._expected(row) for row in x.split(1)])
        if self.by == "batch":
            return self._until(x, lambda state: state.sum().item())
        return torch.cat([self._until(row, lambda state: state.max().item()) for row in x.split(1)])

    def _until(self, state: Tensor, measure: Callable[[Tensor], float]) -> Tensor:
        for iteration in range(self.iterations):
            if (self.asks_first or iteration > 0) and measure(state) > self.limit:
                break
            state = self.parts[0].run(state)
        return state

    def _expected(self, state: Tensor) -> Tensor:
        states, stops = [], []
        for iteration in range(self.iterations):
            if self.asks_first or iteration > 0:
                states.append(state)
                stops.append(
                    torch.sigmoid((state * self.learned.linear.weight).sum() + self.learned.linear.bias)
                )
            state = self.parts[0].run(state)
        expected, left = torch.zeros_like(state), torch.ones(1, dtype=state.dtype)
        for visited, stop in zip(states, stops):
            expected, left = expected + left * stop * visited, left * (1 - stop)
        return expected + left * state


@dataclass
class Gate:
    parts: list[Part]
    kind: str
    refs: tuple[str, ...] = ()
    router: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        routers = {"softmax": SoftmaxRouter, "sigmoid": SigmoidRouter, "top": TopKRouter}
        self.router = routers[self.kind](WIDTH, len(self.parts))

    def add(self, flow: FlowBuilder) -> None:
        flow.gate(self.router, [part.target for part in self.parts]).using(*self.refs)

    def run(self, x: Tensor, values: Values) -> Tensor:
        seen = x + sum(values.of(self.refs).values())
        logits = seen @ self.router.linear.weight.T + self.router.linear.bias
        if self.kind == "sigmoid":
            weights = 1 / (1 + torch.exp(-logits))
        else:
            best = logits.sort(descending=True).values[:, : 2 if self.kind == "top" else None]
            shares = torch.exp(logits) / torch.exp(best).sum(1, keepdim=True)
            weights = torch.where(logits >= best[:, -1:], shares, torch.zeros_like(shares))
        return sum(weights[:, k, None] * part.run(x) for k, part in enumerate(self.parts))


@dataclass
class Switch:
    parts: list[Part]
    kind: str
    masked: bool
    selector: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        self.selector = ArgmaxSelector(WIDTH, len(self.parts))

    def add(self, flow: FlowBuilder) -> None:
        chosen = {
            "fixed": FixedSelector(len(self.parts) - 1),
            "batch": lambda x: (x.sum() > 0).long(),
            "sample": self.selector,
        }
        flow.switch(chosen[self.kind], [part.target for part in self.parts], masked=self.masked)

    def run(self, x: Tensor, values: Values) -> Tensor:
        if self.kind == "fixed":
            return self.parts[-1].run(x)
        if self.kind == "batch":
            return self.parts[int(x.sum().item() > 0)].run(x)
        linear = self.selector.linear
        rows = []
        for row in x.split(1):
            best = int((row @ linear.weight.T + linear.bias).argmax())
            rows.append(self.parts[best].run(row))
        return torch.cat(rows)


@dataclass
class Map:
    parts: list[Part]
    kind: str
    batched: bool
    over: str = ""
    half: Cell = field(init=False)

    def __post_init__(self) -> None:
        self.half = Cell(WIDTH // 2)

    def add(self, flow: FlowBuilder) -> None:
        if self.kind == "slices":
            flow.map(self.half, batched=self.batched).slices(2)
        elif self.over:
            flow.map(self.parts[0].target, batched=self.batched).over(self.over)
        else:
            flow.map(self.parts[0].target, batched=self.batched).each()

    def run(self, x: Tensor, values: Values) -> Tensor:
        if self.kind == "slices":
            left, right = x[:, : WIDTH // 2], x[:, WIDTH // 2 :]
            return torch.cat([self.half.run(left), self.half.run(right)], 1)
        source = values.now[self.over] if self.over else x
        if self.batched:
            return self.parts[0].run(source)
        return torch.cat([self.parts[0].run(row) for row in source.split(1)])

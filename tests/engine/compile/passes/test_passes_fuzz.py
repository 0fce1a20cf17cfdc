"""Random programs compute the same after each graph pass."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from flodl.engine.compile.passes import fx
from flodl.engine.compile.passes import pipeline as fusion
from flodl.engine.compile.passes.attention import AttentionWithoutCopies
from flodl.engine.compile.passes.gru import DecomposeGruCells
from flodl.engine.compile.passes.matmuls import batching as products
from flodl.engine.compile.passes.matmuls.batching import BatchAndSplitMatmuls
from flodl.engine.compile.passes.matmuls.row_order import MatmulInStorageOrder

aten = torch.ops.aten
SHORT, LONG, TURNS = 4, 8, 3


@pytest.fixture(autouse=True, scope="module")
def everything_is_changed():
    """The passes support float32 on CUDA and large matrices; here they accept float64 of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fx, "is_cuda_float32", lambda node: node.meta["val"].dtype is torch.float64)
        patch.setattr(fx, "is_cuda", lambda node: isinstance(node.meta.get("val"), Tensor))
        patch.setattr(products, "MIN_PART", 1)
        yield


class AnyTimes:
    """A device on which any variant may be the fastest."""

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)

    def matmul(self, left, right) -> float:
        return self._source.choice([5.0, 50.0])

    def split_k(self, left, right, parts: int) -> float:
        return self._source.choice([1.0, 100.0])

    def batch(self, left, right, count: int, *, shared: bool, copied) -> float:
        return self._source.choice([1.0, 1000.0])


@dataclass(frozen=True)
class Step:
    """One operation; its inputs are chosen by number among the values that fit."""

    kind: str
    first: int
    second: int
    third: int


def flattened(row: Tensor, how: int) -> Tensor:
    """Torch traces a view, which its compiler turns into a reshape."""
    shape = [row.shape[1]]
    return aten.view.default(row, shape) if how % 2 else aten.reshape.default(row, shape)


def computed(step: Step, known: list[Tensor]) -> Tensor | None:
    """Return the result of an operation on the values so far; None if no value fits."""

    def chosen(number: int, fits: Callable[[Tensor], bool]) -> Tensor | None:
        fitting = [value for value in known if fits(value)]
        # The latest first, so that operations form chains.
        return fitting[-1 - number % len(fitting)] if fitting else None

    matrix = chosen(step.first, lambda value: value.dim() == 2)
    assert matrix is not None
    rows, columns = matrix.shape
    row = chosen(step.second, lambda value: value.shape == (columns,))
    alike = chosen(step.second, lambda value: value.shape == matrix.shape)
    assert alike is not None
    match step.kind:
        case "turn":
            series = chosen(step.first, lambda value: value.dim() == 3)
            return None if series is None else series[:, step.second % TURNS]
        case "part":
            return aten.slice.Tensor(matrix, 0, 0, SHORT) if rows > SHORT else None
        case "product" | "gradient" | "layer":
            left = aten.permute.default(matrix, [1, 0]) if step.kind == "gradient" else matrix
            right = chosen(step.second, lambda value: value.dim() == 2 and len(value) == left.shape[1])
            if right is None:
                return None
            bias = chosen(step.third, lambda value: value.shape == (right.shape[1],))
            if step.kind == "layer" and bias is not None:
                return aten.addmm.default(bias, left, right)
            return aten.mm.default(left, right)
        case "transposed":
            return aten.permute.default(matrix, [1, 0])
        case "exchanged":
            whole = aten.clone.default(matrix, memory_format=torch.contiguous_format)
            halves = aten.permute.default(aten.view.default(whole, [2, rows // 2, columns]), [1, 0, 2])
            copied = aten.clone.default(halves, memory_format=torch.contiguous_format)
            return aten.view.default(copied, [rows, columns])
        case "relu":
            return aten.relu.default(matrix)
        case "sum":
            return aten.add.Tensor(matrix, alike)
        case "spread":
            return None if row is None else aten.add.Tensor(matrix, row)
        case "rows" if step.third % 2:
            return aten.sum.dim_IntList(matrix, [0])
        case "rows":
            return flattened(aten.sum.dim_IntList(matrix, [0], True), step.second)
        case "sum of rows":
            other = chosen(step.first, lambda value: value.dim() == 1)
            assert other is not None
            same = chosen(step.second, lambda value: value.shape == other.shape)
            return aten.add.Tensor(other, same)
        case "random":
            return matrix * torch.rand_like(matrix)
    raise AssertionError(step.kind)


def nest(step: Step, known: list[Tensor]) -> list[Tensor]:
    """Add up several new values, like the gradient of a parameter that a loop shares."""
    kind = ("gradient", "rows", "product")[step.third % 3]
    made: list[Tensor] = []
    for turn in range(4):
        value = computed(Step(kind, step.first + turn, step.second + turn, step.third // 3), known)
        if value is not None and (not made or value.shape == made[0].shape):
            made.append(value)
    if step.second % 2:
        # A value that is used twice in one place gets the same gradient twice.
        made += made[:1]
    return [functools.reduce(aten.add.Tensor, made)] if made else []


def backward(step: Step, known: list[Tensor]) -> list[Tensor]:
    """Return the gradients of a layer: of its weight, its bias and, with a norm, its input."""
    weight = computed(Step("gradient", step.first, step.second, step.third), known)
    bias = computed(Step("rows", step.first, step.second, step.third), known)
    matrix = [value for value in known if value.dim() == 2]
    grad = matrix[-1 - step.first % len(matrix)]
    before = [grad - bias.tanh()] if step.third % 3 == 0 else []
    return [*before, bias, *([] if weight is None else [weight])]


def made_by(step: Step, known: list[Tensor]) -> list[Tensor]:
    if step.kind == "nest":
        return nest(step, known)
    if step.kind == "backward":
        return backward(step, known)
    value = computed(step, known)
    return [] if value is None else [value]


def program_of(steps: list[Step], num_outputs: int) -> Callable[..., tuple[Tensor, ...]]:
    def program(*inputs: Tensor) -> tuple[Tensor, ...]:
        known = list(inputs)
        for step in steps:
            known += made_by(step, known)
        made = known[len(inputs) :] or [known[0] + known[0]]
        return tuple(made[-num_outputs:])

    return program


def inputs() -> list[Tensor]:
    """Return a sequence, matrices that fit each other, and rows to add to them."""
    source = torch.Generator().manual_seed(0)
    shapes = [(SHORT, TURNS, LONG), (SHORT, LONG), (LONG, SHORT), (LONG, LONG), (LONG, LONG), (SHORT, SHORT)]
    shapes += [(SHORT,), (LONG,), (SHORT, LONG)]
    return [torch.randn(shape, generator=source, dtype=torch.float64) / 3 for shape in shapes]


KINDS = ["turn", "part", "product", "gradient", "layer", "transposed", "relu", "sum", "spread", "rows"]
KINDS += ["sum of rows", "nest", "product", "gradient", "nest"]
numbers = st.integers(0, 11)


def programs(kinds: list[str]) -> st.SearchStrategy[Callable[..., tuple[Tensor, ...]]]:
    steps = st.builds(Step, st.sampled_from(kinds), numbers, numbers, numbers)
    return st.builds(program_of, st.lists(steps, min_size=4, max_size=16), st.integers(1, 5))


def check(program: Callable[..., tuple[Tensor, ...]], *changes: Callable[[Graph], None]) -> None:
    """Compare a program with its results after each pass alone, and after all of them."""
    given = inputs()
    traced = make_fx(program, tracing_mode="fake")(*given).graph
    torch.manual_seed(0)
    expected = program(*given)
    for these in [*([change] for change in changes), changes]:
        graph = copy.deepcopy(traced)
        for change in these:
            change(graph)
            graph.lint()
        torch.manual_seed(0)
        found, shapes = run(graph, given)
        for node, shape in shapes.items():
            assert node.meta["val"].shape == shape, node
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def run(graph: Graph, given: list[Tensor]) -> tuple[tuple[Tensor, ...], dict[torch.fx.Node, torch.Size]]:
    """Return what a program computes, and the shape of every value in it."""
    shapes: dict[torch.fx.Node, torch.Size] = {}

    class Watching(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node):
            value = super().run_node(n)
            if n.op != "output":
                shapes[n] = value.shape
            return value

    return tuple(Watching(GraphModule({}, graph)).run(*given)), shapes


def changes_of(seed: int) -> list[Callable[[Graph], None]]:
    """Return the passes in their order; those of one stage are combined."""
    return [
        fusion.PassSequence(DecomposeGruCells(), fusion.DecomposeAddmm()),
        fusion.PassSequence(MatmulInStorageOrder(), AttentionWithoutCopies()),
        fusion.MergeMatmulSums(),
        fusion.MergeRowSums(),
        fusion.PassSequence(fusion.DecomposeAddmm(1 << 20), BatchAndSplitMatmuls(AnyTimes(seed))),  # type: ignore[arg-type]
    ]


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(programs(KINDS), st.integers(0, 1000))
def test_a_rewritten_program_computes_the_same(program, seed: int) -> None:
    check(program, *changes_of(seed))


@pytest.mark.slow
@settings(max_examples=30, deadline=None, derandomize=True)
@given(programs([*KINDS, "backward", "random", "random"]), st.integers(0, 1000))
def test_a_rewritten_program_draws_the_same_random_numbers(program, seed: int) -> None:
    check(program, *changes_of(seed))


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(programs(["backward", "backward", "nest", "relu", "sum of rows"]), st.integers(0, 1000))
def test_a_rewritten_backward_computes_the_same(program, seed: int) -> None:
    check(program, *changes_of(seed))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(programs(["exchanged", "exchanged", "product", "gradient", "layer", "rows", "relu", "sum"]))
def test_a_program_with_permuted_rows_computes_the_same(program) -> None:
    check(program, MatmulInStorageOrder())

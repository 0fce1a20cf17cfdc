"""Equal graphs share generated code, so that torch compiles it once; different graphs do not."""

from __future__ import annotations

import copy
import gc
import linecache
import pickle

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from flodl import FlowBuilder, SoftmaxRouter
from flodl.graph.plan.codegen import generate

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def layer() -> nn.Module:
    return nn.Linear(8, 8)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def plus(x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    return x + memory


class Plain(nn.Module):
    """A block as one writes it by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = layer(), layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.gelu(self.first(x)))


BLOCKS = {
    "chain": lambda: FlowBuilder(layer()).through(nn.GELU()).through(layer()).build(),
    "tag": lambda: FlowBuilder(layer()).tag("hidden").through(nn.GELU()).also(layer()).build(),
    "function": lambda: FlowBuilder(layer()).through(doubled).through(lambda x: x + 1).build(),
    "split": lambda: FlowBuilder(layer()).split([layer(), layer()]).merge("add").build(),
    "loop": lambda: FlowBuilder(layer()).loop_body(layer()).for_n(3).build(),
    "gate": lambda: FlowBuilder(layer()).gate(SoftmaxRouter(8, 2), [layer(), layer()]).build(),
    "nested": lambda: FlowBuilder(BLOCKS["chain"]()).through(BLOCKS["chain"]()).build(),
}


def num_compiled(blocks: list[nn.Module]) -> int:
    """Return how many graphs torch compiles for blocks that are compiled one by one."""
    torch._dynamo.reset()
    counters.clear()
    for block in blocks:
        block.compile(backend="eager")
    for _ in range(2):
        for block in blocks:
            block(torch.ones(2, 8))
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("kind", BLOCKS)
def test_equal_graphs_are_compiled_once(kind: str) -> None:
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        assert num_compiled([BLOCKS[kind]() for _ in range(12)]) == 1


def test_a_plain_module_is_compiled_as_often_as_a_graph() -> None:
    assert num_compiled([Plain() for _ in range(12)]) == 1


def test_graphs_with_carried_state_are_compiled_once_for_the_first_call_and_once_for_the_others() -> None:
    def block() -> nn.Module:
        return (
            FlowBuilder(layer())
            .through(plus)
            .using(memory="m", init="zeros")
            .through(layer())
            .tag("m")
            .build()
        )

    with torch.no_grad():
        assert num_compiled([block() for _ in range(12)]) == 2


def test_compiled_graphs_that_share_code_compute_with_their_own_weights() -> None:
    torch.manual_seed(0)
    blocks = [BLOCKS["tag"]() for _ in range(3)]
    x = torch.randn(2, 8)
    expected = [block(x) for block in blocks]
    assert num_compiled(blocks) == 1
    for block, output in zip(blocks, expected, strict=True):
        torch.testing.assert_close(block(x), output)
        torch.testing.assert_close(block.tagged("hidden"), block.hidden(x))


def test_different_graphs_do_not_share_code() -> None:
    blocks = [BLOCKS[kind]() for kind in ("chain", "tag", "split")]
    assert num_compiled(blocks) == len(blocks)
    names = {generate(block.spec).filename for block in blocks}
    assert len(names) == len(blocks)


def test_graphs_of_different_functions_are_compiled_apart() -> None:
    blocks = [FlowBuilder(layer()).through(function).tag("f").build() for function in (torch.sin, torch.cos)]
    assert blocks[0].code == blocks[1].code
    x = torch.ones(2, 8)
    assert num_compiled(blocks) == 2
    for block, function in zip(blocks, (torch.sin, torch.cos), strict=True):
        torch.testing.assert_close(block(x), function(block.linear_1(x)))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph))])
def test_a_copy_shares_the_code(copied) -> None:
    graph = BLOCKS["chain"]()
    assert generate(copied(graph).spec).filename == generate(graph.spec).filename


def test_the_source_of_a_graph_is_forgotten_with_the_last_graph_that_uses_it() -> None:
    graphs = [FlowBuilder(layer()).tag("seen_nowhere_else").build() for _ in range(2)]
    name = generate(graphs[0].spec).filename
    assert linecache.getlines(name)
    del graphs[0]
    gc.collect()
    assert linecache.getlines(name)
    graphs.clear()
    gc.collect()
    assert name not in linecache.cache


def test_an_error_has_the_whole_path_if_a_graph_has_the_same_code_as_the_one_around_it() -> None:
    inner = FlowBuilder(nn.Linear(8, 8)).tag("same").build()
    outer = FlowBuilder(inner).tag("same").build()
    assert inner.code == outer.code
    with pytest.raises(RuntimeError, match=r"'same\.same'"):
        outer(torch.ones(2, 7))

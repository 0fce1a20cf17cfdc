"""Programs whose graphs a pass has rewritten."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx


def rewritten(
    program: Callable[..., object], change: Callable[[Graph], None], *inputs: Tensor
) -> GraphModule:
    """Trace a program, rewrite its graph, and check that it is valid."""
    traced: GraphModule = make_fx(program, tracing_mode="fake")(*inputs)
    change(traced.graph)
    traced.graph.lint()
    traced.recompile()
    return traced


def num_calls(graph: Graph, target: object) -> int:
    """Return how often a graph calls a function."""
    return len(graph.find_nodes(op="call_function", target=target))

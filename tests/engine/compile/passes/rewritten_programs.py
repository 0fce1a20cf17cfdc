"""Programs whose graphs a pass has rewritten."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass
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


def counted(kind: type[CustomGraphPass], target: object) -> tuple[CustomGraphPass, list[int]]:
    """Return a pass that counts the calls of a function in each graph it has rewritten, and the counts."""
    counts: list[int] = []

    class Counted(kind):  # type: ignore[misc, valid-type]
        def __call__(self, graph: Graph) -> None:
            super().__call__(graph)
            counts.append(num_calls(graph, target))

        def uuid(self) -> None:
            """Keep the graph out of torch's cache on disk, from which it would come without the pass."""

    return Counted(), counts


def num_calls(graph: Graph, target: object) -> int:
    """Return how often a graph calls a function."""
    return len(graph.find_nodes(op="call_function", target=target))

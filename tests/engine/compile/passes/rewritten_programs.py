"""Programs whose graphs a pass has rewritten."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager
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


def compiled_like_eager(
    layer: nn.Module,
    inputs: Tensor,
    change: CustomGraphPass,
    *,
    function: Callable[[Tensor], Tensor] | None = None,
    autocast: bool = True,
    tolerance: float = 3e-2,
    code: bool = False,
) -> None:
    """Compile a layer with a pass on its early graph; check its result and all gradients against eager mode.

    `function` is called in place of the layer. The tolerance is a fraction of the largest value. The C++ code
    is generated only with `code`, which takes seconds.
    """
    results: list[list[Tensor]] = []
    called = function or layer
    if code:
        compiled = torch.compile(called, options={"pre_grad_custom_pass": change}, dynamic=False)
    else:
        compiled = torch.compile(called, backend=partial(_rewrite_only, change), dynamic=False)
    for forward in (called, compiled):
        x = inputs.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            result = forward(x)
        (result.float() * torch.linspace(-1, 1, result.numel()).reshape(result.shape)).sum().backward()
        assert x.grad is not None
        grads = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
        results.append([result, x.grad, *grads])
    assert results[1][0].stride() == results[0][0].stride()
    for theirs, ours in zip(*results, strict=True):
        assert ours.dtype == theirs.dtype
        # A gradient may be zero up to rounding, such as that of a key's bias.
        atol = max(tolerance * theirs.float().abs().max().item(), 1e-5)
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=0, atol=atol)


def _rewrite_only(
    change: CustomGraphPass, traced: GraphModule, inputs: list[Tensor]
) -> Callable[..., object]:
    """Compile a graph like torch's compiler, but only rewrite it and run the result with eager operations."""
    change(traced.graph)
    traced.graph.lint()
    traced.recompile()
    return aot_eager(traced, inputs)

"""Concatenations with empty tensors are removed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from flodl.engine.compile.passes.empty_parts import RemoveEmptyParts

aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("passes_on_cpu")


def left(program, *inputs: Tensor) -> int:
    """Trace a program and rewrite its graph; return how many concatenations are left."""
    traced = make_fx(program, tracing_mode="fake")(*inputs)
    RemoveEmptyParts()(traced.graph)
    traced.graph.lint()
    traced.recompile()
    torch.testing.assert_close(traced(*inputs), program(*inputs), rtol=0, atol=0)
    return len(traced.graph.find_nodes(op="call_function", target=aten.cat.default))


def test_a_concatenation_with_an_empty_cache_is_removed() -> None:
    def program(x: Tensor, empty: Tensor) -> Tensor:
        return aten.cat([empty, x], -2) * 2

    assert left(program, torch.randn(2, 3, 4), torch.empty(0)) == 0
    assert left(program, torch.randn(2, 3, 4), torch.empty(2, 0, 4)) == 0


def test_other_concatenations_are_left_alone() -> None:
    assert left(lambda x, y: aten.cat([x, y], 0) * 2, torch.randn(2, 3), torch.randn(1, 3)) == 1
    # A result has memory of its own.
    assert left(lambda x, y: aten.cat([x, y], 0), torch.randn(2, 3), torch.empty(0)) == 1

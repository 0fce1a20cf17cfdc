"""The strides of a chain of views are known relative to its source, through copies too."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx

from flodl.engine.compile.passes.strides import StridedView, is_view, view_of_source

aten = torch.ops.aten


def shapes_of(count: int, source: random.Random) -> list[int]:
    """Return a random shape with this number of elements."""
    shape = []
    while count > 1 and len(shape) < 4:
        shape.append(source.choice([part for part in range(2, count + 1) if count % part == 0]))
        count //= shape[-1]
    shape.append(count)
    source.shuffle(shape)
    return shape


def viewed(x: Tensor, source: random.Random) -> Tensor:
    """Return a random view or copy of a tensor."""
    dims, kind = x.dim(), source.randrange(9)
    dim = source.randrange(dims)
    length = x.shape[dim]
    if kind == 0:
        return x.permute(source.sample(range(dims), dims))
    if kind == 1:
        return x.reshape(shapes_of(x.numel(), source))
    if kind == 2:
        return x.clone(memory_format=torch.contiguous_format)
    if kind == 3 and dims > 1:
        return x.select(dim, source.randrange(-length, length))
    if kind == 4:
        start = source.randrange(length)
        end = source.randint(start + 1, length)
        return aten.slice.Tensor(x, dim, start - source.choice([0, length]), end)
    if kind == 5:
        return source.choice(x.split(source.randint(1, length), dim))
    if kind == 6 and dims > 1:
        return source.choice(x.unbind(dim))
    if kind == 7 and dims > 1:
        return x.transpose(dim, -source.randint(1, dims))
    return x.unsqueeze(source.randint(-dims - 1, dims)) if dims < 5 else x.squeeze().reshape(-1)


def last(program, x: Tensor) -> Node:
    """Trace a program, and return the input of its last call."""
    *_, call, _ = make_fx(program, tracing_mode="fake")(x).graph.nodes
    return call.args[0]


def read(found: StridedView, x: Tensor) -> Tensor:
    """Gather the elements of a view, one by one."""
    indices = torch.tensor(found.offset)
    for runs in found.dims:
        along = torch.zeros(1, dtype=torch.long)
        for size, stride in runs:
            along = (along[:, None] + torch.arange(size) * stride).reshape(-1)
        indices = indices[..., None] + along
    return x.reshape(-1)[indices]


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 100_000))
def test_a_view_reads_the_elements_that_its_strides_say(seed: int) -> None:
    def program(x: Tensor) -> Tensor:
        source = random.Random(seed)
        x = x + 0
        for _ in range(source.randint(1, 7)):
            x = viewed(x, source)
        return x * 1

    shape = random.Random(seed).choices([1, 2, 3, 4, 6, 8], k=3)
    x = torch.arange(float(math.prod(shape))).view(shape)
    shown = last(program, x)
    if (found := view_of_source(shown)) is not None:
        assert found.source.target is aten.add.Tensor
        assert torch.equal(read(found, x).reshape(shown.meta["val"].shape), program(x))


def test_heads_are_seen_through_the_copies_of_torchs_attention() -> None:
    def program(x: Tensor) -> Tensor:
        packed = (x + 1).unflatten(-1, (3, 16)).unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous()
        return packed[1].view(5, 2 * 4, 4).transpose(0, 1).view(2, 4, 5, 4) * 1

    found = view_of_source(last(program, torch.randn(5, 2, 48)))
    assert found is not None
    assert found.dims == (((2, 48),), ((4, 4),), ((5, 96),), ((4, 1),))
    assert (found.offset, found.copied, found.is_whole) == (16, True, False)


def test_a_view_that_breaks_a_run_is_not_known() -> None:
    assert view_of_source(last(lambda x: (x + 1)[:, :3].reshape(6, 2) * 1, torch.randn(4, 6))) is None


def test_a_computed_value_is_its_own_source_and_not_a_view() -> None:
    value = last(lambda x: (x + 1) * 1, torch.randn(4, 6))
    found = view_of_source(value)
    assert found is not None
    assert found.source is value
    assert found.is_whole
    assert not found.copied
    assert not is_view(value)

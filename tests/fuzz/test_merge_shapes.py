"""Merges of branches with random shapes: the exact result, or an error. Never a silent broadcast."""

import pytest
import torch

from flodl import FlowBuilder
from flodl.core import ShapeError

OPS = {"add": torch.add, "mean": lambda a, b: (a + b) / 2, "max": torch.maximum, "mul": torch.mul}


def test_a_merge_never_broadcasts_silently(fuzz):
    def check(rng):
        base = [rng.choice([1, 2, 3]) for _ in range(rng.randint(0, 3))]
        other = [1 if rng.random() < 0.2 else size for size in base]
        other = other[1:] if rng.random() < 0.2 else [1, *other] if rng.random() < 0.2 else other
        left, right = torch.randn(base), torch.randn(other)
        op = rng.choice(list(OPS))
        model = FlowBuilder().split([lambda x: left, lambda x: right]).merge(op).build()
        may_merge = base == other or (op == "mul" and len(base) == len(other))
        if may_merge:
            assert torch.equal(model(torch.ones(1)), OPS[op](left, right))
        else:
            with pytest.raises(ShapeError, match="cannot"):
                model(torch.ones(1))

    fuzz(check)

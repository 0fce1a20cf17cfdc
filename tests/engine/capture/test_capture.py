"""What `capture` accepts and refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl.core import StepError
from flodl.engine import capture


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, *, scale: torch.Tensor, times: int = 1) -> torch.Tensor:
        return x * scale * times


def test_a_region_takes_named_arguments() -> None:
    forward = capture(Scaled().eval())
    x, scale = torch.ones(2), torch.tensor(3.0)
    assert forward(x, scale=scale).tolist() == [3.0, 3.0]
    assert forward(x, times=2, scale=scale).tolist() == [6.0, 6.0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_captures": 0}, r"max_captures=0\. Pass an integer of at least 1"),
        ({"max_captures": 2.5}, r"max_captures=2\.5"),
        ({"warmup": -1}, r"warmup=-1\. Pass an integer of at least 0"),
        ({"warmup": True}, r"warmup=True"),
    ],
)
def test_counts_that_make_no_sense_are_refused(settings: dict, expected: str) -> None:
    with pytest.raises(StepError, match=expected):
        capture(torch.relu, **settings)

"""The memory format of images inside a compiled step."""

from __future__ import annotations

import shutil
from itertools import count

import pytest
import torch
from torch import nn

from flodl.engine import TrainStep
from flodl.engine.compile.memory_format import LayoutChoice, pick_fastest
from flodl.engine.compile.variants import Variants


def test_the_layout_with_the_shortest_time_is_chosen() -> None:
    slow, turns = count(5), count(4, -1)
    measured = pick_fastest(
        {"as given": lambda: float(next(slow)), "channels last": lambda: float(next(turns))}
    )
    assert measured == LayoutChoice("channels last", {"as given": 5.0, "channels last": 0.0})


def test_without_a_choice_nothing_is_measured() -> None:
    measured = pick_fastest({None: lambda: 1 / 0})
    assert measured == LayoutChoice(None, {})
    assert not measured.is_clearly_faster


def compiles(test):
    """Mark what needs torch's compiler."""
    marks = (
        pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for the CPU with g++"),
        pytest.mark.skipif(
            " " in torch.__file__, reason="torch cannot link in a folder whose name has a space"
        ),
        pytest.mark.filterwarnings("ignore::DeprecationWarning"),
        pytest.mark.filterwarnings("ignore::FutureWarning"),
    )
    for mark in marks:
        test = mark(test)
    return test


@compiles
@pytest.mark.slow
def test_a_convolution_is_compiled_in_both_formats_and_trains_like_eager() -> None:
    def train(tier: str) -> tuple[torch.Tensor, TrainStep, nn.Module]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        step = TrainStep(model, optimizer, lambda model, x, y: (model(x) - y).square().mean(), tier=tier)
        generator = torch.Generator().manual_seed(1)
        images = [torch.randn(4, 3, 8, 8, generator=generator) for _ in range(8)]
        return torch.stack([step(x, torch.zeros(4, 2)) for x in images]), step, model

    eager, _, theirs = train("eager")
    compiled, step, ours = train("compiled")
    assert step.tier == "compiled"
    assert "; images " in step.report().reason
    assert "as given " in step.report().reason
    assert "channels last " in step.report().reason
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-3, atol=1e-4)
    assert [p.stride() for p in ours.parameters()] == [p.stride() for p in theirs.parameters()]


@pytest.mark.slow
@compiles
def test_a_program_is_traced_once_and_a_failed_variant_leaves_the_others() -> None:
    traced = 0

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2).sum()

    class Counted(Variants[str]):
        def __call__(self, program, inputs):
            nonlocal traced
            traced += 1
            return super().__call__(program, inputs)

    variants = Counted({"good": {}, "bad": {"no_such_option": True}, "other": {"epilogue_fusion": False}})
    compiled = torch.compile(loss_of, dynamic=False, backend=variants)
    x = torch.arange(6.0, requires_grad=True)
    for name in ("good", "other"):
        x.grad = None
        variants.select(name, compiled)(x).backward()
        torch.testing.assert_close(x.grad, 2 * x.detach().cos())
    with pytest.raises(Exception, match="no_such_option"):
        variants.select("bad", compiled)(x)
    assert traced == 1

"""The compiled tier on the CPU: fused forward and backward, within the stated tolerance of eager."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from flodl.engine import TrainStep
from flodl.engine.compile import policy as compilation
from flodl.engine.internals import controller_of

# torch's own modules warn while its compiler is imported.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for the CPU with g++"),
    pytest.mark.skipif(" " in torch.__file__, reason="torch cannot link in a folder whose name has a space"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def train(tier: str) -> tuple[torch.Tensor, TrainStep]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 2))
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, tier=tier)
    generator = torch.Generator().manual_seed(1)
    losses = [
        step(torch.randn(8, 4, generator=generator), torch.randn(8, 2, generator=generator))
        for _ in range(15)
    ]
    return torch.stack(losses), step


WITHOUT_A_COMPILER = """
import torch
from flodl.engine import TrainStep
model = torch.nn.Linear(4, 2)
loss = lambda model, x, y: (model(x) - y).square().mean()
step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, tier="compiled")
for _ in range(6):
    step(torch.ones(8, 4), torch.zeros(8, 2))
print(step.tier, step.report().reason)
"""


def test_a_step_that_cannot_be_compiled_stays_eager_and_says_why(tmp_path) -> None:
    environment = {**os.environ, "CXX": "/no/such/compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_COMPILER], env=environment, capture_output=True, text=True
    )
    assert done.stdout.startswith("eager the step cannot be compiled: torch's compiler failed: "), done


def test_the_compiled_tier_follows_eager_and_says_how_closely() -> None:
    eager, _ = train("eager")
    compiled, step = train("compiled")
    assert step.tier == "compiled", step.report()
    assert step.report().reason == "gradients within 0.001 of eager's over 2 updates"
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)


def test_auto_compiles_in_another_process_while_training_goes_on(monkeypatch, paced, capfd) -> None:
    """The step function prints, which must not disturb the other process."""
    monkeypatch.setitem(compilation.COMPILE_AFTER_S, "cpu", 0.0)

    def printing(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        print("a step")
        return mse(model, x, y)

    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), printing)
    paced(step, {"eager": 2.0, "compiled": 1.0})
    waited = 0
    while step.tier == "eager" and controller_of(step).tiers_ahead:
        step(torch.ones(8, 4), torch.zeros(8, 2))
        waited += "another process" in step.report().reason
        time.sleep(0.05)  # a core for the other process
    report = step.report()
    assert report.tier == "compiled", report
    assert waited > 0
    assert report.compiles == 1
    assert report.promotion_cost_s > 0
    assert set(capfd.readouterr().out.splitlines()) == {"a step"}
    losses = [step(torch.ones(8, 4), torch.zeros(8, 2)) for _ in range(3)]
    assert torch.isfinite(torch.stack(losses)).all()

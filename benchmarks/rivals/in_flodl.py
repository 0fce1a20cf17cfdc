"""flodl: the graph and `TrainStep`, which selects the fused optimizer on CUDA."""

from __future__ import annotations

import torch
from models import Batches, Reference
from torch import nn

from flodl import TrainStep

from .runner import Runner

MOST_STEPS = 20


class Flodl(Runner):
    """The captured tier; eager on a CPU."""

    wanted = "captured"

    def __init__(self, reference: Reference, batches: Batches, device: str) -> None:
        super().__init__()
        self.batches, self.device = batches, device
        model = reference.flow(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=reference.lr, fused=True)
        self.step = TrainStep(
            model,
            optimizer,
            lambda model, x, y: reference.loss(model(x), y),
            tier=self.wanted,
        )
        self._climb()
        _start_over(reference.flow(device), model, optimizer)

    def _climb(self) -> None:
        """Train until the step has reached its tier and was measured there, or cannot reach it."""
        for number in range(MOST_STEPS):
            self.step(*self.batches[number % len(self.batches)])
            report = self.step.report()
            if report.tier == self.wanted and report.step_s is not None:
                return

    def train(self) -> float:
        # The step computes the mean loss itself.
        self.step.reset_means()
        for x, y in self.batches:
            self.step(x, y)
        return self.step.means()["loss"].item()

    def note(self) -> str:
        report = self.step.report()
        return "" if report.tier == self.wanted else f"on the {report.tier} tier: {report.reason}"


@torch.no_grad()
def _start_over(fresh: nn.Module, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore the initial weights, buffers and optimizer state in place."""
    for ours, before in zip(model.state_dict().values(), fresh.state_dict().values(), strict=True):
        ours.copy_(before)
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()


class FlodlCompiled(Flodl):
    """The compiled tier, which is also captured on CUDA."""

    wanted = "compiled"

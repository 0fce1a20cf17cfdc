"""flodl: the graph and `TrainStep`, which chooses the fused optimizer by itself."""

from __future__ import annotations

import torch
from models import Batches, Reference

from flodl import TrainStep

from .runner import Runner

MOST_STEPS = 20


class Flodl(Runner):
    """The captured tier; a CPU has none, and stays eager."""

    wanted = "captured"

    def __init__(self, reference: Reference, batches: Batches, device: str) -> None:
        super().__init__()
        self.batches, self.device = batches, device
        model = reference.flow(device)
        self.step = TrainStep(
            model,
            torch.optim.Adam(model.parameters(), lr=reference.lr),
            lambda model, x, y: reference.loss(model(x), y),
            tier=self.wanted,
        )
        self._climb()

    def _climb(self) -> None:
        """Train until the step stands on its tier and was measured there, or will not get there."""
        for number in range(MOST_STEPS):
            self.step(*self.batches[number % len(self.batches)])
            report = self.step.report()
            if report.tier == self.wanted and report.step_s is not None:
                return

    def train(self) -> float:
        total = torch.zeros((), device=self.device)
        for x, y in self.batches:
            total += self.step(x, y)
        return total.item() / len(self.batches)

    def note(self) -> str:
        report = self.step.report()
        return "" if report.tier == self.wanted else f"on the {report.tier} tier: {report.reason}"


class FlodlCompiled(Flodl):
    """The compiled tier, which on CUDA is recorded as well."""

    wanted = "compiled"

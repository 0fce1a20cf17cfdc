"""Plain torch: as the reference wrote it, with matched settings, and compiled."""

from __future__ import annotations

import torch
from models import Batches, Reference
from torch import Tensor

from .runner import Runner


class AsReferenced(Runner):
    """The reference's loop: default Adam, attention that returns its weights, the loss read every step."""

    def __init__(self, reference: Reference, batches: Batches, device: str) -> None:
        super().__init__()
        self.batches, self.loss = batches, reference.loss
        self.model = reference.module(device, matched=False)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=reference.lr)

    def train(self) -> float:
        total = 0.0
        for x, y in self.batches:
            loss = self.loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / len(self.batches)


class Matched(Runner):
    """The same work with torch's best eager settings: fused Adam, fused attention, one read per epoch."""

    def __init__(self, reference: Reference, batches: Batches, device: str) -> None:
        super().__init__()
        self.batches, self.loss, self.device = batches, reference.loss, device
        self.model = reference.module(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=reference.lr, fused=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.model(x), y)

    def train(self) -> float:
        total = torch.zeros((), device=self.device)
        for x, y in self.batches:
            loss = self.forward(x, y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        return total.item() / len(self.batches)


class Compiled(Matched):
    """Forward and loss through torch.compile, which compiles their backward too."""

    mode: str | None = None

    def __init__(self, reference: Reference, batches: Batches, device: str) -> None:
        super().__init__(reference, batches, device)
        self.forward = torch.compile(self.forward, mode=self.mode)  # type: ignore[method-assign]


class ReduceOverhead(Compiled):
    """torch.compile with its own CUDA graphs."""

    mode = "reduce-overhead"

    def train(self) -> float:
        total = torch.zeros((), device=self.device)
        for x, y in self.batches:
            # The gradients of the last step use memory that a new step overwrites.
            self.optimizer.zero_grad()
            torch.compiler.cudagraph_mark_step_begin()
            loss = self.forward(x, y)
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        return total.item() / len(self.batches)

"""Lightning's Trainer in its barest form: no logger, checkpoints, progress bar or summary."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from harness import wait
from models import Batches, Reference
from torch import Tensor

from .runner import Runner, Unavailable

try:
    import lightning.pytorch as lightning
except ImportError:
    try:
        import pytorch_lightning as lightning
    except ImportError:
        lightning = None


class Batched:
    """The batches as a loader for Lightning, which treats a plain list as several loaders."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class Lightning(Runner):
    """Epochs of one Trainer, timed inside its hooks, so that the setup of `fit` does not count."""

    def __init__(self, reference: Reference, batches: Batches, device: str) -> None:
        super().__init__()
        if lightning is None:
            raise Unavailable("Lightning is not installed")
        for name in ("lightning.pytorch", "pytorch_lightning", "lightning_fabric", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self.loader = Batched(batches)
        self.module = _module(reference, device)
        self.trainer = lightning.Trainer(
            barebones=True, max_epochs=0, accelerator="cpu" if device == "cpu" else "gpu", devices=1
        )

    def train(self) -> float:
        self.turn(1)
        return self.losses.pop()

    def turn(self, epochs: int) -> list[float]:
        module = self.module
        module.taken_s.clear()
        self.trainer.fit_loop.max_epochs = self.trainer.current_epoch + epochs
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.trainer.fit(module, train_dataloaders=self.loader)
        self.losses += module.means[-epochs:]
        return list(module.taken_s)


def _module(reference: Reference, device: str) -> Any:
    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = reference.module(device)
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=reference.lr, fused=True)
            self.taken_s: list[float] = []
            self.means: list[float] = []

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.optimizer

        def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            x, y = batch
            loss = reference.loss(self.model(x), y)
            self.total += loss.detach()
            self.count += 1
            return loss

        def on_train_epoch_start(self) -> None:
            wait()
            self.started = Runner.clock()
            self.total, self.count = torch.zeros((), device=self.device), 0

        def on_train_epoch_end(self) -> None:
            self.means.append(self.total.item() / self.count)
            wait()
            self.taken_s.append(Runner.clock() - self.started)

    return Module()

"""One run of a recipe: solo, or on several ranks with a policy."""

from __future__ import annotations

import inspect
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from flodl import Loader, Trainer

from .recipes import RECIPES, Recipe

POLICIES = ("solo", "sync", "cadence", "async")


@dataclass(frozen=True)
class Choice:
    """What is run. `ranks` does not count for "solo"."""

    model: str
    policy: str
    backend: str
    seed: int
    ranks: int
    epochs: int
    device: str

    @property
    def key(self) -> str:
        together = "" if self.policy == "solo" else f"/{self.backend}/{self.ranks} ranks"
        return f"{self.model}/{self.policy}{together}/{self.epochs} epochs/seed {self.seed}"


class EpochClock:
    """Adds up the seconds of all epochs, with their evaluations."""

    def __init__(self) -> None:
        self.seconds = self._began_s = 0.0

    def on_epoch_start(self, epoch: int) -> None:
        self._began_s = time.perf_counter()

    def on_epoch_end(self, epoch: int) -> None:
        self.seconds += time.perf_counter() - self._began_s


def can_use_ranks() -> bool:
    """Return whether this version of flodl trains on several devices."""
    return "devices" in inspect.signature(Trainer.__init__).parameters


def run(choice: Choice) -> dict[str, Any]:
    """Train, and return the quality on all test samples and what ranks did."""
    recipe = RECIPES[choice.model]
    train, test = recipe.load()
    # The same initial weights for all policies.
    torch.manual_seed(choice.seed)
    model = recipe.make_model()
    loaders = _loaders(recipe, train, test, choice)
    updates = choice.epochs * len(loaders[0])
    clock = EpochClock()
    trainer = Trainer(
        model,
        recipe.loss_of,
        optimizer=recipe.optimizer,
        schedule=None if recipe.schedule is None else recipe.schedule(updates),
        save_every=None,
        log_every=None,
        seed=choice.seed,
        hooks=[clock],
        **_devices(choice),
    )
    started_s = time.perf_counter()
    result = trainer.fit(loaders[0], epochs=choice.epochs, eval_data=loaders[1])
    total_s = time.perf_counter() - started_s
    curve = [row[f"eval_{recipe.metric}"] for row in result.history]
    found = {**asdict(choice), "seconds": clock.seconds, "total_s": total_s}
    found |= {"quality": curve[-1], "curve": curve, "loss": result.metrics["loss"]}
    ranks = getattr(result, "ranks", None)
    if ranks is not None:
        found |= {
            # Without the start of the processes.
            "seconds": max(each.train_s + each.wait_s + each.reduce_s for each in ranks.ranks),
            "syncs": ranks.syncs,
            "idle": ranks.idle,
            "divergence": ranks.divergence,
            "num_bytes": sum(each.num_bytes for each in ranks.ranks),
            "per_rank": [asdict(each) for each in ranks.ranks],
        }
    return found


def _devices(choice: Choice) -> dict[str, Any]:
    if choice.policy == "solo":
        return {"device": choice.device}
    return {
        "devices": [choice.device] * choice.ranks,
        "policy": choice.policy,
        "backend": choice.backend,
    }


def _loaders(recipe: Recipe, train: Any, test: Any, choice: Choice) -> tuple[Loader, Loader]:
    augment = [*recipe.augment, *recipe.normalize] or None
    # A solo run shuffles as well: the order is that of the seed for every policy.
    return (
        Loader(
            train, recipe.batch_size, shuffle=True, seed=choice.seed, augment=augment, device=choice.device
        ),
        Loader(test, 500, shuffle=False, augment=[*recipe.normalize] or None, device=choice.device),
    )

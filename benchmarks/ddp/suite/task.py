"""What is run: a recipe, a policy, a seed; and its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flodl import Loader

from .recipes import Recipe

OURS = ("solo", "sync", "cadence", "async")


@dataclass(frozen=True)
class Choice:
    """One run. `ranks` does not count for "solo"; `limit` is the number of batches of an epoch, 0 means all.

    `shares` says how much of a batch, or how many batches, each rank of a rival with a split gets.
    """

    model: str
    policy: str
    backend: str
    seed: int
    ranks: int
    epochs: int
    device: str
    limit: int = 0
    shares: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        where = f"/{self.ranks} ranks"
        if self.policy == "solo":
            where = ""
        elif self.policy in OURS:
            where = f"/{self.backend}{where}"
        elif len(set(self.shares)) > 1:
            where += f" {':'.join(map(str, self.shares))}"
        batches = f" of {self.limit} batches" if self.limit else ""
        return f"{self.model}/{self.policy}{where}/{self.epochs} epochs{batches}/seed {self.seed}"


def loaders_of(recipe: Recipe, choice: Choice, device: str) -> tuple[Loader, Loader]:
    """Return the loaders of training and test data. The order is that of the seed for every policy."""
    train, test = recipe.load()
    augment: list[Any] | None = [*recipe.augment, *recipe.normalize] or None
    return (
        Loader(train, recipe.batch_size, shuffle=True, seed=choice.seed, augment=augment, device=device),
        Loader(test, 500, shuffle=False, augment=[*recipe.normalize] or None, device=device),
    )

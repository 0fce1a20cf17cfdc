"""One run of a recipe with flodl: solo, or on several ranks with a policy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from flodl import Loader, Trainer

from . import rivals
from .recipes import RECIPES
from .task import OURS, Choice, loaders_of

POLICIES = (*OURS, *rivals.RIVALS)
# Slices of the timeline of a rank that are kept.
MAX_SLICES = 400


class EpochClock:
    """Adds up the seconds of training, from the start of an epoch to that of its evaluation."""

    def __init__(self) -> None:
        self.seconds = self._began_s = self._stopped_s = 0.0
        # The seconds of each evaluation.
        self.evaluations: list[float] = []

    def on_epoch_start(self, epoch: int) -> None:
        self._began_s = time.perf_counter()

    def stop(self) -> None:
        """An evaluation begins; the last one of an epoch counts."""
        self._stopped_s = time.perf_counter()

    def on_epoch_end(self, epoch: int) -> None:
        self.seconds += self._stopped_s - self._began_s
        self.evaluations.append(time.perf_counter() - self._stopped_s)


class TestLoader(Loader):
    """Tells a clock when it is iterated over."""

    clock: EpochClock

    def __iter__(self) -> Iterator[Any]:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.clock.stop()
        return super().__iter__()


def run(choice: Choice) -> dict[str, Any]:
    """Train, and return the quality on all test samples and what ranks did."""
    started_s = time.perf_counter()
    found = _run_flodl(choice) if choice.policy in OURS else rivals.run(choice)
    return {**asdict(choice), "total_s": time.perf_counter() - started_s, **found}


def _run_flodl(choice: Choice) -> dict[str, Any]:
    recipe = RECIPES[choice.model]
    # The same initial weights for all policies.
    torch.manual_seed(choice.seed)
    model = recipe.make_model()
    train, test = loaders_of(recipe, choice, choice.device)
    clock = EpochClock()
    test.__class__, test.clock = TestLoader, clock  # type: ignore[assignment, attr-defined]
    per_epoch = min(len(train), choice.limit) if choice.limit else len(train)
    trainer = Trainer(
        model,
        recipe.loss_of,
        optimizer=recipe.optimizer,
        schedule=None if recipe.schedule is None else recipe.schedule(choice.epochs * per_epoch),
        save_every=None,
        log_every=None,
        seed=choice.seed,
        hooks=[clock],
        monitor=False,
        **_devices(choice),
    )
    result = trainer.fit(train, epochs=choice.epochs, eval_data=test, limit=choice.limit or None)
    curve = [row[f"eval_{recipe.metric}"] for row in result.history]
    found = {
        "seconds": clock.seconds,
        "quality": curve[-1],
        "curve": curve,
        "loss": result.metrics["loss"],
    }
    ranks = result.ranks
    if ranks is not None:
        found |= {
            "seconds": _seconds(ranks.history.slices, clock),
            "syncs": ranks.syncs,
            "idle": ranks.waiting,
            "divergence": ranks.divergence,
            "num_bytes": ranks.num_bytes,
            "link": ranks.link,
            "per_rank": [asdict(each) for each in ranks.ranks],
            "timeline": _timeline(ranks.history.slices),
        }
    return found


def _seconds(slices: dict[int, list[Any]], clock: EpochClock) -> float:
    """Return the time from the first work of a rank to the last, without the evaluations in between."""
    first_s = min(own[0][0] for own in slices.values() if own)
    last_s = max(own[-1][1] for own in slices.values() if own)
    return last_s - first_s - sum(clock.evaluations[:-1])


def _timeline(slices: dict[int, list[Any]]) -> dict[str, list[list[float]]]:
    """Return the first slices of each rank: begin, end, and seconds of training, reducing and waiting."""
    begin_s = min((own[0][0] for own in slices.values() if own), default=0.0)
    return {
        str(rank): [[round(start - begin_s, 3), round(end - begin_s, 3), *(round(each, 3) for each in parts)]
                    for start, end, *parts in own[:MAX_SLICES]]
        for rank, own in slices.items()
    }  # fmt: skip


def _devices(choice: Choice) -> dict[str, Any]:
    if choice.policy == "solo":
        return {"device": choice.device}
    return {
        "devices": [choice.device] * choice.ranks,
        "policy": choice.policy,
        "backend": choice.backend,
    }

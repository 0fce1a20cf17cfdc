"""Which values the next run gets: grid and random here, everything else from Optuna and Ray Tune."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol

from flodl.core.errors import SetupError
from flodl.core.metric_modes import Mode

from .observation import Observation
from .ray_search import RAY_SEARCHES, RaySearch
from .space import Choices, Dimension, grid

DEFAULT_RUNS = 10


class Search(Protocol):
    """Propose values. The same number and the same observations give the same values."""

    num_runs: int

    def propose(self, number: int, observed: Sequence[Observation], mode: Mode) -> dict[str, Any]:
        """Return the values of run `number`, which counts from 0."""
        ...


class GridSearch:
    """Every combination, in order."""

    def __init__(self, space: Sequence[Dimension]) -> None:
        self._points = grid(space)
        self.num_runs = len(self._points)

    def propose(self, number: int, observed: Sequence[Observation], mode: Mode) -> dict[str, Any]:
        return self._points[number]


class RandomSearch:
    """Independent random values; from a finite space, combinations without repetition.

    >>> search = RandomSearch([Choices("hidden", (16, 32, 64))], num_runs=3, seed=0)
    >>> sorted(search.propose(number, [], "min")["hidden"] for number in range(3))
    [16, 32, 64]
    """

    def __init__(self, space: Sequence[Dimension], *, num_runs: int, seed: int) -> None:
        self._space, self._seed = space, seed
        self._shuffled: list[dict[str, Any]] = []
        if all(isinstance(dimension, Choices) for dimension in space):
            self._shuffled = grid(space)
            random.Random(f"{seed}").shuffle(self._shuffled)
            num_runs = min(num_runs, len(self._shuffled))
        self.num_runs = num_runs

    def propose(self, number: int, observed: Sequence[Observation], mode: Mode) -> dict[str, Any]:
        if self._shuffled:
            return self._shuffled[number]
        rng = random.Random(f"{self._seed} {number}")
        return {dimension.name: dimension.sample(rng) for dimension in self._space}


ENGINE_SEARCHES = ("tpe", "gp", *RAY_SEARCHES)
SEARCHES = ("grid", "random", *ENGINE_SEARCHES)


def make_search(
    name: str, space: Sequence[Dimension], *, num_runs: int | None, seed: int, runs_origin: str = "--runs"
) -> Search:
    """Return a search by its name. `runs_origin` says who asks for `num_runs`."""
    if name == "grid":
        found = GridSearch(space)
        if num_runs is not None and num_runs != found.num_runs:
            raise SetupError(
                f"{runs_origin}: the grid has {found.num_runs} runs, but {num_runs} were requested. Omit the "
                "number of runs, or use random search."
            )
        return found
    count = DEFAULT_RUNS if num_runs is None else num_runs
    if name == "random":
        return RandomSearch(space, num_runs=count, seed=seed)
    if name in RAY_SEARCHES:
        return RaySearch(space, name=name, num_runs=count, seed=seed)
    from .optuna_search import OptunaSearch

    return OptunaSearch(space, algorithm=name, num_runs=count, seed=seed)

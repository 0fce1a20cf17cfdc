"""Which values the next run gets: grid and random here, everything else from Optuna and Ray Tune."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence, Set
from typing import Any, Protocol

from flodl.core.errors import SetupError
from flodl.core.formats import counted
from flodl.core.metric_modes import Mode

from .observation import Observation
from .ray_search import RAY_SEARCHES, RaySearch
from .space import MAX_GRID, Choices, Dimension, combinations, grid, num_combinations

DEFAULT_RUNS = 10
_MAX_TRIES = 1000


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

    >>> from flodl.cli.sweep.space import parse_dimension
    >>> search = RandomSearch([parse_dimension("seed=0..3")], num_runs=10, seed=0)
    >>> sorted(search.propose(number, [], "min")["seed"] for number in range(search.num_runs))
    [0, 1, 2, 3]
    >>> search.note
    'The space has 4 combinations, so there are 4 runs instead of 10: each combination runs once.'
    """

    def __init__(self, space: Sequence[Dimension], *, num_runs: int, seed: int) -> None:
        self._space, self._seed = space, seed
        self._shuffled: list[dict[str, Any]] = []
        self._proposed: list[dict[str, Any]] = []
        self._known: set[tuple[str, ...]] = set()
        size = num_combinations(space)
        self._is_finite = size is not None
        self.note = ""
        if size is not None and size < num_runs:
            self.note = (
                f"The space has {counted(size, 'combination')}, so there {'is' if size == 1 else 'are'} "
                f"{counted(size, 'run')} instead of {num_runs}: each combination runs once."
            )
            num_runs = size
        self.num_runs = num_runs
        if size is not None and size <= MAX_GRID and all(isinstance(one, Choices) for one in space):
            self._shuffled = grid(space)
            random.Random(f"{seed}").shuffle(self._shuffled)

    def propose(self, number: int, observed: Sequence[Observation], mode: Mode) -> dict[str, Any]:
        if self._shuffled:
            return self._shuffled[number]
        if not self._is_finite:
            return self._sample(random.Random(f"{self._seed} {number}"))
        while len(self._proposed) <= number:
            values = self._unused(len(self._proposed), self._known)
            self._proposed.append(values)
            self._known.add(self._key(values))
        if not observed:
            return self._proposed[number]
        # Runs of an earlier version of flodl may have used the combination already.
        used = [*self._proposed[:number], *(one.values for one in observed)]
        return self._unused(number, set(map(self._key, used)))

    def _unused(self, number: int, known: Set[tuple[str, ...]]) -> dict[str, Any]:
        """Return random values that are not known yet. They depend only on the seed and the number."""
        rng = random.Random(f"{self._seed} {number}")
        for _ in range(_MAX_TRIES):
            values = self._sample(rng)
            if self._key(values) not in known:
                return values
        # Few are left, or they are rare, as the large numbers of a log range are.
        return next((one for one in combinations(self._space) if self._key(one) not in known), values)

    def _sample(self, rng: random.Random) -> dict[str, Any]:
        return {dimension.name: dimension.sample(rng) for dimension in self._space}

    def _key(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(repr(values.get(dimension.name)) for dimension in self._space)


def note_of(search: Search) -> str:
    """Return what to say about a search: that it has fewer runs than were asked for, or nothing."""
    return search.note if isinstance(search, RandomSearch) else ""


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

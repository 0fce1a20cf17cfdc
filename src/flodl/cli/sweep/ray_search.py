"""Searches with Ray Tune searchers, each of which needs Ray and the package that it wraps."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from typing import Any

from flodl.core.errors import SetupError
from flodl.core.metric_modes import Mode

from .observation import Observation
from .ray_domains import axis_of
from .run_seed import seed_of_run
from .space import Choices, Dimension

_METRIC = "result"


@dataclass(frozen=True)
class RaySearcher:
    """A searcher of Ray Tune: its class, the package that it wraps, and how it differs from others."""

    module: str  # in ray.tune.search
    class_name: str
    imported: str  # the module of the package
    requirement: str  # the package for pip
    seed_name: str
    last_point_first: bool = False  # stores the points to evaluate in reverse order
    floats_only: bool = False
    below_version: int | None = None


# Only searchers that take a seed and points to evaluate first, so that proposals can be repeated. Nevergrad's
# and ZOOpt's have no seed, BOHB's needs a scheduler of Ray Tune, and Ax's fails with current versions of Ax.
RAY_SEARCHES = {
    "ray:hyperopt": RaySearcher(
        "hyperopt", "HyperOptSearch", "hyperopt", "hyperopt", "random_state_seed", last_point_first=True
    ),
    "ray:bayesopt": RaySearcher(
        "bayesopt", "BayesOptSearch", "bayes_opt", "bayesian-optimization==1.4.3", "random_state",
        floats_only=True, below_version=2,
    ),
    "ray:optuna": RaySearcher("optuna", "OptunaSearch", "optuna", "optuna", "seed"),
}  # fmt: skip


class RaySearch:
    """Ask a searcher of Ray Tune for the next values. Ray itself is not started.

    The searcher is created again each time, and is asked for the values of the observed runs first. Nothing
    but the runs themselves is stored, and a resumed sweep proposes what the uninterrupted one would have
    proposed.
    """

    def __init__(self, space: Sequence[Dimension], *, name: str, num_runs: int, seed: int) -> None:
        self._kind, self._seed = RAY_SEARCHES[name], seed
        self.num_runs = num_runs
        if self._kind.floats_only:
            _check_floats(name, space)
        tune, self._create = _import_searcher(name, self._kind)
        self._axes = {
            dimension.name: axis_of(dimension, tune, as_fraction=self._kind.floats_only)
            for dimension in space
        }

    def propose(self, number: int, observed: Sequence[Observation], mode: Mode) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the packages, about each other
            found = self._searcher(number, observed, mode).suggest("next")
        return {name: axis.decode(found[name]) for name, axis in self._axes.items()}

    def _searcher(self, number: int, observed: Sequence[Observation], mode: Mode) -> Any:
        """Return a searcher that knows the observed runs."""
        if self._kind.floats_only:
            observed = list(_for_bayesopt(observed, mode))
        runs = {f"{at}": observation for at, observation in enumerate(observed)}
        asked = list(reversed(runs)) if self._kind.last_point_first else list(runs)
        points = [
            {name: axis.encode(runs[run].values[name]) for name, axis in self._axes.items()} for run in asked
        ]
        searcher = self._create(
            points_to_evaluate=points or None,
            **{self._kind.seed_name: seed_of_run(self._seed, number)},
            **(_bayesopt_settings(observed) if self._kind.floats_only else {}),
        )
        searcher.set_search_properties(
            _METRIC, mode, {name: axis.domain for name, axis in self._axes.items()}
        )
        for run in asked:
            searcher.suggest(run)
        for run, observation in runs.items():
            if observation.result is not None:
                searcher.on_trial_complete(run, {_METRIC: observation.result})
            elif not observation.is_running:
                searcher.on_trial_complete(run, error=True)
        return searcher


def _bayesopt_settings(observed: Sequence[Observation]) -> dict[str, Any]:
    """Return settings with which the searcher always proposes something.

    It starts with ten random runs by default, but then waits for all of them, also for one that has failed.
    It skips values that it has proposed before, and ends after some repetitions.
    """
    num_finished = sum(observation.result is not None for observation in observed)
    num_random = 0 if num_finished >= 10 else len(observed) + 1
    return {"random_search_steps": num_random, "skip_duplicate": False, "patience": len(observed) + 2}


def _for_bayesopt(observed: Sequence[Observation], mode: Mode) -> Iterator[Observation]:
    """Yield the runs with different values only, because bayes_opt rejects a point that it knows.

    A run that has not finished counts as bad as the worst one: runs at the same time avoid each other.
    """
    results = [observation.result for observation in observed if observation.result is not None]
    worst = (max if mode == "min" else min)(results, default=None)
    known: list[dict[str, Any]] = []
    for observation in sorted(observed, key=lambda one: one.is_running):
        result = worst if observation.is_running else observation.result
        if result is not None:
            if observation.values in known:
                continue
            known.append(observation.values)
        yield replace(observation, result=result)


def _check_floats(name: str, space: Sequence[Dimension]) -> None:
    for dimension in space:
        if isinstance(dimension, Choices) or dimension.is_integer:
            kind = "listed values" if isinstance(dimension, Choices) else "integers"
            others = [other for other, searcher in RAY_SEARCHES.items() if not searcher.floats_only]
            raise SetupError(
                f"{dimension.origin}: --search {name} takes only ranges of floats, but {dimension.name} has "
                f"{kind}. Use {' or '.join(others)}."
            )


def _import_searcher(name: str, kind: RaySearcher) -> tuple[Any, Any]:
    """Return the module `ray.tune` and the class of a searcher."""
    install = f'Install it: pip install "flodl[ray]" "{kind.requirement}". grid and random need nothing.'
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tune = import_module("ray.tune")
            package = import_module(kind.imported)
            found = getattr(import_module(f"ray.tune.search.{kind.module}"), kind.class_name)
    except ImportError as error:
        raise SetupError(
            f"--search {name} needs a package that is not installed ({error.name or error}). {install}"
        ) from None
    if kind.below_version is not None:
        distribution = kind.requirement.partition("==")[0]
        if int((installed := version(distribution)).partition(".")[0]) >= kind.below_version:
            raise SetupError(
                f"--search {name} needs another version of {distribution}: Ray Tune does not work with "
                f"{installed}. {install}"
            )
    if kind.imported == "optuna":
        package.logging.set_verbosity(package.logging.WARNING)
    return tune, found

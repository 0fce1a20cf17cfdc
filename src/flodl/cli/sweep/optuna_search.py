"""Searches by Optuna, an optional dependency: `flodl[sweep]`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from flodl.core.errors import SetupError
from flodl.core.metric_modes import Mode

from .observation import Observation
from .run_seed import seed_of_run
from .space import Choices, Dimension, Range

# Only samplers whose proposals depend on nothing but the finished runs; CMA-ES keeps a state of its own.
_SAMPLERS = {"tpe": "TPESampler", "gp": "GPSampler"}


class OptunaSearch:
    """Ask an Optuna sampler for the next values.

    The study is rebuilt from the observations each time: nothing but the runs themselves is stored, and a
    resumed sweep proposes what the uninterrupted one would have proposed.
    """

    def __init__(self, space: Sequence[Dimension], *, algorithm: str, num_runs: int, seed: int) -> None:
        self._optuna = _import_optuna(algorithm)
        self._space, self._algorithm, self._seed = space, algorithm, seed
        self.num_runs = num_runs
        self._distributions = {dimension.name: self._distribution(dimension) for dimension in space}

    def propose(self, number: int, observed: Sequence[Observation], mode: Mode) -> dict[str, Any]:
        optuna = self._optuna
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about experimental samplers, which is its own matter
            study = optuna.create_study(
                sampler=self._sampler(number), direction="minimize" if mode == "min" else "maximize"
            )
            for observation in observed:
                study.add_trial(self._trial(observation))
            try:
                trial = study.ask(self._distributions)
            except ImportError as error:
                raise _missing(self._algorithm, error) from None
        return {
            dimension.name: _rounded(dimension, trial.params[dimension.name]) for dimension in self._space
        }

    def _sampler(self, number: int) -> Any:
        settings: dict[str, Any] = {"seed": seed_of_run(self._seed, number)}
        if self._algorithm == "tpe":
            settings["constant_liar"] = True  # runs at the same time avoid each other
        try:
            return getattr(self._optuna.samplers, _SAMPLERS[self._algorithm])(**settings)
        except ImportError as error:
            raise _missing(self._algorithm, error) from None

    def _trial(self, observation: Observation) -> Any:
        states = self._optuna.trial.TrialState
        state = states.RUNNING if observation.is_running else states.FAIL
        if observation.result is not None:
            state = states.COMPLETE
        return self._optuna.trial.create_trial(
            params=observation.values,
            distributions=self._distributions,
            value=observation.result,
            state=state,
        )

    def _distribution(self, dimension: Dimension) -> Any:
        kinds = self._optuna.distributions
        if isinstance(dimension, Choices):
            return kinds.CategoricalDistribution(dimension.values)
        if dimension.is_integer:
            return kinds.IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
        return kinds.FloatDistribution(float(dimension.low), float(dimension.high), log=dimension.log)


def _rounded(dimension: Dimension, value: Any) -> Any:
    return dimension.rounded(value) if isinstance(dimension, Range) else value


def _import_optuna(algorithm: str) -> Any:
    try:
        import optuna
    except ImportError as error:
        raise _missing(algorithm, error) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _missing(algorithm: str, error: ImportError) -> SetupError:
    return SetupError(
        f"--search {algorithm} needs a package that is not installed ({error.name or error}). Install "
        f'it: pip install "flodl[sweep]". grid and random need nothing.'
    )

"""Everything that can make two runs differ, collected without being asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flodl.checkpoint import Policy
from flodl.core.plain import describe, plain
from flodl.data import Loader

from ..callbacks.dispatch import Hooks
from ..evaluation.evaluator import Evaluator
from ..session import Session
from .code import code_version
from .machine import hardware, torch_flags, versions
from .model import describe_model, describe_optimizer, hash_of_weights
from .settings import config_of


class Recorder:
    """Collect the record of a start; `config` are the settings of the user."""

    def __init__(
        self, evaluator: Evaluator, hooks: Hooks, *, keep: Policy | None, config: Mapping[str, Any]
    ) -> None:
        self.config = config
        self._evaluator, self._hooks, self._keep = evaluator, hooks, keep

    def record(self, session: Session, *, epochs: int, eval_loader: Loader | None) -> dict[str, Any]:
        """Return JSON data with the same keys for every run and, for equal runs, the same values."""
        loader, start, evaluator = session.loader, session.start, self._evaluator
        record = {
            "epochs": epochs,
            "limit": start.limit,
            **config_of(session),
            **self._at_first_start(session),
            "keep": None if self._keep is None else str(self._keep),
            "hooks": self._hooks.settings,
            "step_fn": describe(evaluator.step_fn),
            "metrics": {name: describe(metric) for name, metric in evaluator.metrics.items()},
            "outputs": None if evaluator.outputs is None else describe(evaluator.outputs),
            "data": _known(lambda: None if loader is None else loader.description),
            "eval_data": _known(lambda: None if eval_loader is None else eval_loader.description),
            "config": dict(self.config),
            "code": _known(lambda: code_version(evaluator.step_fn)),
            "versions": versions(),
            "hardware": _known(lambda: hardware(session.device)),
            "torch": torch_flags(),
        }
        described: dict[str, Any] = plain(record)
        return described

    def _at_first_start(self, session: Session) -> dict[str, Any]:
        """Return what applies since the first start of a run, whatever this program sets."""
        start = session.start
        earlier = start.earlier_record
        if "optimizer_settings" in earlier:
            return {name: earlier.get(name) for name in ("optimizer_settings", "model", "started_from")}
        is_first = start.source is None
        groups = start.optimizer if is_first else None  # a run that starts from another has its rates
        knows_weights = not session.updates or not is_first
        weights = _known(lambda: hash_of_weights(session.model)) if knows_weights else None
        return {
            "optimizer_settings": describe_optimizer(session.optimizer, groups),
            "model": {**describe_model(session.model), "weights_at_start": weights},
            "started_from": start.source,
        }


def _known(read: Callable[[], Any]) -> Any:
    """Return what a function returns, or why it failed: a run must not fail because of its record."""
    try:
        return read()
    except Exception as error:
        return f"unknown ({type(error).__name__})"

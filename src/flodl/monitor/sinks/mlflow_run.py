"""Write a run to MLflow."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from flodl.core.usage.calls import MonitorCallError, explain_creation

from .sink import Numbers
from .tracker import Tracker, require

_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_FORBIDDEN = re.compile(r"[^\w\-. /]", re.ASCII)
_MAX_NAME_LENGTH = 250
_MAX_VALUE_LENGTH = 6000


@explain_creation(MonitorCallError, example="Write MLflow(experiment='flodl').")
class MLflow(Tracker):
    """Send metrics and settings to MLflow; by default to a local SQLite file, or to the store at `uri`."""

    def __init__(
        self, uri: str = "sqlite:///mlflow.db", *, experiment: str = "flodl", name: str = ""
    ) -> None:
        require("mlflow", install="mlflow-skinny sqlalchemy alembic")
        self._uri = uri
        self._experiment = experiment
        self._name = name

    def _open(self, name: str, settings: dict[str, Any], time_s: float) -> None:
        # A client with an explicit run: the fluent API keeps the active run per thread.
        client: Any = import_module("mlflow.tracking").MlflowClient(tracking_uri=self._uri)
        known = client.get_experiment_by_name(self._experiment)
        experiment_id = known.experiment_id if known else client.create_experiment(self._experiment)
        run = client.create_run(experiment_id, run_name=self._name or name or None)
        self._client, self._run_id = client, run.info.run_id
        self._settings: dict[str, str] = {}
        self._configure(settings)

    def _configure(self, settings: dict[str, Any]) -> None:
        for path, value in settings.items():
            name, text = _valid_name(path), str(value)[:_MAX_VALUE_LENGTH]
            # MLflow refuses to change a parameter.
            if self._settings.setdefault(name, text) == text:
                self._client.log_param(self._run_id, name, text)
            else:
                self._client.set_tag(self._run_id, name, text)

    def _log(self, numbers: Numbers, time_s: float) -> None:
        metric = import_module("mlflow.entities").Metric
        time_ms = int(time_s * 1000)
        metrics = [
            metric(_valid_name(name), value, time_ms, numbers.position)
            for name, value in numbers.values.items()
        ]
        self._client.log_batch(self._run_id, metrics=metrics)

    def _end(self, status: str) -> None:
        self._client.set_terminated(self._run_id, _STATUS.get(status, "FINISHED"))


def _valid_name(name: str) -> str:
    return _FORBIDDEN.sub("_", name)[:_MAX_NAME_LENGTH]

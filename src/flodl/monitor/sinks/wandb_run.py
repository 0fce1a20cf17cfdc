"""Write a run for Weights & Biases, offline by default."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from flodl.core.files import expand_user
from flodl.core.usage.calls import MonitorCallError, explain_creation

from .sink import Numbers
from .tracker import Tracker, require

_AXES = ("epoch", "step", "resources")
_LEVELS = {"error": "ERROR", "info": "INFO"}


@explain_creation(MonitorCallError, example="Write WandB('my-project').")
class WandB(Tracker):
    """Write a Weights & Biases run to `folder`; upload it with `wandb sync`, or live with `mode="online"`."""

    def __init__(
        self,
        project: str = "flodl",
        *,
        name: str = "",
        folder: str | os.PathLike[str] = ".",
        mode: str = "offline",
    ) -> None:
        require("wandb", install="wandb")
        self._project = project
        self._name = name
        self._folder = expand_user(folder)
        self._mode = mode

    def _open(self, name: str, settings: dict[str, Any], time_s: float) -> None:
        os.makedirs(self._folder, exist_ok=True)
        wandb: Any = import_module("wandb")
        self._run: Any = wandb.init(
            project=self._project,
            name=self._name or name or None,
            dir=self._folder,
            mode=self._mode,
            config=settings,
            # Its console capture would change what our console writes.
            settings=wandb.Settings(console="off", silent=True),
        )
        # The axes of flodl; the default comes last, because more specific rules win.
        for axis in _AXES:
            self._run.define_metric(f"{axis}/number")
            self._run.define_metric(f"{axis}/*", step_metric=f"{axis}/number")
        self._run.define_metric("*", step_metric="epoch/number")

    def _log(self, numbers: Numbers, time_s: float) -> None:
        # The step of W&B must increase with every call, so the position is logged as a value.
        self._run.log({**numbers.values, f"{numbers.axis}/number": numbers.position})

    def _configure(self, settings: dict[str, Any]) -> None:
        self._run.config.update(settings, allow_val_change=True)

    def _warn(self, message: str, level: str) -> None:
        self._run.alert(title="flodl", text=message, level=_LEVELS.get(level, "WARN"))

    def _end(self, status: str) -> None:
        self._run.finish(exit_code=int(status == "failed"))

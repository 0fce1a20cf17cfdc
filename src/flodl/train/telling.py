"""Who hears of a run: a monitor with its journal and page, the console alone, or nobody."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from flodl.core import TrainError
from flodl.core.environment import resolved_config
from flodl.monitor import Event, Monitor


class Telling:
    """Pass on what happens in a run to those who listen."""

    def __init__(
        self,
        monitor: Monitor | bool | None,
        run_dir: Path | None,
        *,
        total_epochs: int,
        config: Mapping[str, Any],
    ) -> None:
        if not isinstance(monitor, Monitor | bool | None):
            raise TrainError(
                f"monitor={monitor!r}. Give a Monitor, True for a live page, or False for silence."
            )
        self._monitor: Monitor | None = None
        self._console: Any = None
        self._owned = not isinstance(monitor, Monitor)
        if isinstance(monitor, Monitor):
            self._monitor = monitor
            monitor.total_epochs = monitor.total_epochs or total_epochs
        elif monitor or (run_dir is not None and monitor is None):
            origins = {name: str(entry.get("origin", "")) for name, entry in resolved_config().items()}
            self._monitor = Monitor(total_epochs, run_dir, config=config, origins=origins)
            if monitor:
                self._monitor.serve()
        elif monitor is None:
            from flodl.monitor.console import Console

            self._console = Console(total_epochs)

    @property
    def monitor(self) -> Monitor | None:
        """The monitor, where there is one."""
        return self._monitor

    def watch(self, *things: Any) -> None:
        """Show a model or a training step."""
        if self._monitor is not None:
            for thing in things:
                self._monitor.watch(thing)

    def progress(self, epoch: int, step: int, num_steps: int | None) -> None:
        """Tell the place within an epoch."""
        if self._monitor is not None:
            self._monitor.progress(epoch, step, num_steps)
        elif self._console is not None:
            self._console(Event("progress", {"epoch": epoch, "step": step, "num_steps": num_steps}))

    def step(self, step: int, epoch: int, loss: Tensor) -> None:
        """Tell the loss of a step; it is read in the background."""
        if self._monitor is not None:
            self._monitor.log_step(step, {"loss": loss}, epoch=epoch)

    def epoch(self, epoch: int, metrics: Mapping[str, float], duration_s: float) -> None:
        """Tell the end of an epoch."""
        if self._monitor is not None:
            self._monitor.log(epoch, metrics, duration_s)
        elif self._console is not None:
            data = {"epoch": epoch, "metrics": dict(metrics), "duration_s": duration_s}
            self._console(Event("epoch", data))

    def event(self, kind: Any, **data: Any) -> None:
        """Tell anything else."""
        event = Event(kind, data)
        if self._monitor is not None:
            self._monitor.emit(event)
        elif self._console is not None:
            self._console(event)

    def finish(self, status: str, message: str | None = None) -> None:
        """Tell the end; a monitor that the user made is left to the user."""
        if self._monitor is not None and self._owned:
            self._monitor.finish(status, message)
        if self._console is not None:
            self._console.close()

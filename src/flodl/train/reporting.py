"""Who hears of a run: a monitor with its journal and page, the console alone, or nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from flodl.core import TrainError, log
from flodl.core.environment import monitor_requested, resolved_config
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
        log_every: int | None = None,
    ) -> None:
        if not isinstance(monitor, Monitor | bool | None):
            raise TrainError(
                f"monitor={monitor!r}. Give a Monitor, True for a live page, or False for silence."
            )
        self._log_every = log_every
        if monitor is None and monitor_requested():
            monitor = True
        self._monitor: Monitor | None = None
        self._console: Any = None
        self._owned = not isinstance(monitor, Monitor)
        if isinstance(monitor, Monitor):
            self._monitor = monitor
            monitor.total_epochs = monitor.total_epochs or total_epochs
        elif monitor or (run_dir is not None and monitor is None):
            values, origins = _with_origins(config)
            self._monitor = Monitor(total_epochs, run_dir, config=values, origins=origins)
            if monitor:
                self._monitor.serve()
        elif monitor is None:
            from flodl.monitor.console import Console

            self._console = Console(total_epochs)

    def watch(self, *things: Any) -> None:
        """Show a model or a training step."""
        if self._monitor is not None:
            for thing in things:
                self._monitor.watch(thing)

    def step(self, epoch: int, step: int, num_steps: int | None, update: int, loss: Tensor) -> None:
        """Tell the place within an epoch, and the loss of every so many: the monitor's step_rate thins them.

        Nothing waits for the device: the loss is handed over as it is.
        """
        if self._monitor is not None:
            self._monitor.progress(epoch, step, num_steps)
            if self._log_every is not None and step % self._log_every == 0:
                self._monitor.log_step(update, {"loss": loss}, epoch=epoch)
        elif self._console is not None:
            self._console(Event("progress", {"epoch": epoch, "step": step, "num_steps": num_steps}))

    def epoch(self, epoch: int, metrics: Mapping[str, float], duration_s: float) -> None:
        """Tell the end of an epoch."""
        if self._monitor is not None:
            self._monitor.log(epoch, metrics, duration_s)
        elif self._console is not None:
            data = {"epoch": epoch, "metrics": dict(metrics), "duration_s": duration_s}
            self._console(Event("epoch", data))

    def event(self, kind: Any, **data: Any) -> None:
        """Tell anything else; what people should see is told in silence too."""
        event = Event(kind, data)
        if self._monitor is not None:
            self._monitor.emit(event)
        elif self._console is not None:
            self._console(event)
        elif kind == "alert" and data["level"] != "info":
            log.warn("%s", data["message"])

    def finish(self, status: str, message: str | None = None) -> None:
        """Tell the end; a monitor that the user made is left to the user."""
        if self._monitor is not None and self._owned:
            self._monitor.finish(status, message)
        if self._console is not None:
            self._console.close()


def _with_origins(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Put what the run was started with beside the settings of the trainer, each value with its origin.

    A setting of the trainer has the origin of a value by that name only if it is that value.
    """
    told = {name.replace("-", "_"): entry for name, entry in resolved_config().items()}
    values = {**config, **{name: entry.get("value") for name, entry in told.items() if name not in config}}
    origins = {
        name: str(entry.get("origin", ""))
        for name, entry in told.items()
        if values[name] == entry.get("value")
    }
    return values, origins


@contextmanager
def telling(
    monitor: Monitor | bool | None,
    run_dir: Path | None,
    *,
    things: tuple[Any, ...],
    total_epochs: int,
    config: Mapping[str, Any],
    log_every: int | None,
    why_stopped: Callable[[], str],
) -> Iterator[Telling]:
    """Tell a run from its start to its end, whichever that is."""
    told = Telling(monitor, run_dir, total_epochs=total_epochs, config=config, log_every=log_every)
    try:
        told.watch(*things)
        yield told
    except BaseException as error:
        status = "stopped" if isinstance(error, SystemExit | KeyboardInterrupt) else "failed"
        told.finish(status, f"{type(error).__name__}: {error}")
        raise
    told.finish("stopped" if why_stopped() else "finished", why_stopped() or None)

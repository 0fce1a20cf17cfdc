"""Show a run on the terminal or in a log file."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from flodl.core import environment, log
from flodl.core.eta import seconds_left
from flodl.core.formats import format_duration
from flodl.core.log import Verbosity

from ..events import Event
from ..fork_safety import register_after_fork
from . import lines
from .bar import Bar
from .lines import Line
from .step_values import StepValues


class Console:
    """Print one line per epoch with its metrics, its duration and the remaining time.

    On a terminal, a progress bar shows the position within the epoch. Elsewhere (log files, notebooks, CI)
    only complete lines are printed: one per epoch, and in a long epoch one every `every_s` seconds.

    >>> console = Console(total_epochs=2, stream=sys.stdout)
    >>> console(Event("epoch", {"epoch": 0, "metrics": {"loss": 0.5}, "duration_s": 1.5}))
      epoch 1/2  loss=0.5000  [1.5s  ETA 1.5s]
    >>> console(Event("epoch", {"epoch": 1, "metrics": {"loss": 0.25}, "duration_s": 1.5}))
      epoch 2/2  loss=0.2500  [1.5s]
    """

    def __init__(
        self,
        total_epochs: int,
        *,
        stream: TextIO | None = None,
        every_s: float = 30.0,
        durations: Mapping[int, float] | None = None,
    ) -> None:
        self._total_epochs = total_epochs
        self._stream = stream
        self._every_s = every_s
        # Epoch → seconds; includes epochs from before a resume, so that the first estimate is accurate.
        self._durations = dict(durations or {})
        # Step metrics may arrive after the end of their epoch, so the two are kept separately.
        self._step_metrics = StepValues()
        self._epoch_metrics: dict[str, Any] = {}
        self._last_epoch = -1
        self._gpus: Sequence[Mapping[str, Any]] = ()
        self._run_started_s: float | None = None
        # The current epoch, and the time and fraction at which its progress was first seen.
        self._epoch: int | None = None
        self._first_seen: tuple[float, float] = (0.0, 0.0)
        self._printed_s: float | None = None
        # The tier, its reason, and whether its gain was printed.
        self._printed_tier = ("", "", False)
        self._lock = threading.RLock()
        self._bar = self._make_bar()

    def __call__(self, event: Event) -> None:
        """Show an event, or store its data."""
        with self._lock:
            if event.kind == "alert":
                self._alert(event)
            elif event.rank == 0:
                self._show(event)

    def close(self) -> None:
        """Remove the progress bar; more lines may follow."""
        with self._lock:
            if self._bar is not None:
                self._bar.hide()
                atexit.unregister(self.close)

    def after_fork_in_child(self) -> None:
        """Stop drawing: this is a copy in a forked child, and the terminal belongs to its parent."""
        self._lock = threading.RLock()
        if self._bar is not None:
            self._bar = None
            atexit.unregister(self.close)

    def _make_bar(self) -> Bar | None:
        stream = self._stream or sys.stdout
        try:
            # Environment variables cannot force a bar: those that force color would animate log files.
            is_terminal = stream.isatty()
        except (AttributeError, ValueError):
            return None
        if not is_terminal or environment.running_in_ci():
            return None
        bar = Bar(stream)
        if not bar.is_usable:
            return None
        atexit.register(self.close)
        register_after_fork(self)
        return bar

    def _show(self, event: Event) -> None:
        match event.kind:
            case "run_start":
                self._run_started_s = self._printed_s = event.time_s
                self._total_epochs = int(event.data.get("total_epochs") or self._total_epochs)
            case "config":
                self._total_epochs = int(event.data.get("total_epochs") or self._total_epochs)
            case "resources":
                self._gpus = event.data.get("gpus", ())
            case "metrics":
                self._step_metrics.add(event.data)
            case "progress":
                self._progress(event)
            case "epoch" if not event.data.get("restored"):  # else the console showed it at an earlier start
                self._finish_epoch(event)
            case "tier":
                self._tier(event.data)
            case "note" if event.data.get("level") != "warning":  # the log has printed warnings
                self._print(lines.note_line(event.data))
            case "save":
                self._print(lines.save_line(event.data), Verbosity.VERBOSE)
            case "run_end":
                self._finish_run(event)

    def _alert(self, event: Event) -> None:
        level = Verbosity.QUIET if event.data.get("level") == "error" else Verbosity.NORMAL
        self._print(lines.alert_line(event.data, rank=event.rank), level)

    def _tier(self, data: Mapping[str, Any]) -> None:
        """Print what is new about the tier; the reason is repeated when the gain is reported."""
        tier, reason = str(data["tier"]), str(data.get("reason") or "")
        printed = self._printed_tier
        before, known, gain_is_printed = printed if printed[0] == tier else (tier, "", False)
        news = "; ".join(part for part in reason.split("; ") if part not in known.split("; "))
        gain = None if gain_is_printed or tier == "eager" else data.get("gain")
        if news or gain is not None or before != self._printed_tier[0]:
            self._print(lines.tier_line(tier, news, gain))
        if data.get("what") in (None, tier):
            self._printed_tier = (tier, reason, gain_is_printed or gain is not None)

    def _finish_epoch(self, event: Event) -> None:
        epoch = int(event.data["epoch"])
        self._epoch_metrics = dict(event.data.get("metrics", {}))
        if event.data.get("duration_s") is not None:
            self._durations[epoch] = float(event.data["duration_s"])
        self._epoch, self._printed_s, self._last_epoch = None, event.time_s, epoch
        if self._bar is not None:
            self._bar.clear()
        eta_s = event.data.get("eta_s")
        if eta_s is None:
            eta_s = seconds_left(self._durations, done=epoch + 1, total_epochs=self._total_epochs)
        self._print(
            lines.epoch_line(event.data, total_epochs=self._total_epochs, eta_s=eta_s, gpus=self._gpus)
        )

    def _progress(self, event: Event) -> None:
        epoch, num_steps = int(event.data["epoch"]), event.data.get("num_steps")
        fraction = min(event.data["step"] / num_steps, 1.0) if num_steps else None
        if epoch != self._epoch:
            self._epoch, self._first_seen = epoch, (event.time_s, fraction or 0.0)
        if self._printed_s is None:
            self._printed_s = event.time_s
        due = self._bar.is_due if self._bar else event.time_s - self._printed_s >= self._every_s
        if not due or not log.enabled(Verbosity.NORMAL):
            return
        metrics, eta = lines.metrics_text(self._step_metrics.latest), self._eta_note(event, fraction or 0.0)
        if self._bar is not None:
            name = lines.epoch_name(epoch, self._total_epochs)
            self._bar.draw(name, fraction, steps=lines.steps_text(event.data), metrics=metrics, eta=eta)
        else:
            self._printed_s = event.time_s
            self._print(lines.progress_line(event.data, total_epochs=self._total_epochs, rest=[metrics, eta]))

    def _eta_note(self, event: Event, fraction: float) -> str:
        first_seen_s, first_fraction = self._first_seen
        seen = fraction - first_fraction
        eta_s = seconds_left(
            self._durations,
            done=int(event.data["epoch"]),
            total_epochs=self._total_epochs,
            fraction=fraction,
            # Extrapolated to the whole fraction: after a resume, only part of it was seen.
            elapsed_s=(event.time_s - first_seen_s) * fraction / seen if seen > 0 else 0.0,
        )
        return f"ETA {format_duration(eta_s)}" if eta_s and self._total_epochs else ""

    def _finish_run(self, event: Event) -> None:
        self.close()
        duration_s = event.data.get("duration_s")
        if duration_s is None:
            started_s = self._run_started_s
            duration_s = sum(self._durations.values()) if started_s is None else event.time_s - started_s
        self._print(lines.end_line(event.data, duration_s=duration_s, metrics=self._last_values(event)))

    def _last_values(self, end: Event) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the metrics of the last epoch, or else of the last steps, and what they belong to."""
        if not self._epoch_metrics:
            return self._step_metrics.by_step()
        began_another = self._epoch is not None or self._step_metrics.epoch > self._last_epoch
        is_earlier = began_another and end.data["status"] != "finished"
        name = f"epoch {self._last_epoch + 1}" if is_earlier else ""
        return [(name, self._epoch_metrics)]

    def _print(self, line: Line, level: Verbosity = Verbosity.NORMAL) -> None:
        if level is not Verbosity.QUIET and not log.enabled(level):
            return
        if self._bar is not None:
            self._bar.print(line)
            return
        stream = self._stream or sys.stdout
        encoding = getattr(stream, "encoding", None) or "utf-8"
        text = lines.text_of(line) + "\n"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()

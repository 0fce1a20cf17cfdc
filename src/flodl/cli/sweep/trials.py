"""The runs of a sweep on disk: each has a folder with its values, its state and its output."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from flodl.core.errors import FlodlError, SetupError
from flodl.core.files import read_limited, write_atomic
from flodl.core.metric_modes import Mode, known_mode, main_metric
from flodl.core.paths import suggestion

from .observation import Observation
from .run_record import RunRecord

FILE = "trial.json"
OUTPUT = "output.log"
_MAX_BYTES = 1 << 20
_JOURNAL = "journal.jsonl"

State = Literal["running", "interrupted", "finished", "failed"]


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: its number from 1, its values and its state."""

    number: int
    values: dict[str, Any]
    state: State = "running"
    exit_code: int | None = None
    signal: str | None = None  # the name of the one that killed it
    pid: int | None = None
    process_s: float | None = None  # when the process started, which tells a reused pid from this one
    started_s: float = field(default_factory=time.time)
    record: RunRecord | None = None  # None for a run of an earlier version of flodl

    @property
    def folder_name(self) -> str:
        return f"{self.number:03d}"

    def save(self, sweep: Path) -> None:
        folder = sweep / self.folder_name
        folder.mkdir(exist_ok=True)
        write_atomic(folder / FILE, json.dumps(asdict(self), indent=2) + "\n")

    def with_process(self, pid: int) -> Trial:
        """Return the trial as it runs now in a process."""
        return replace(
            self, state="running", pid=pid, process_s=_process_start_s(pid), exit_code=None, signal=None
        )

    def is_alive(self) -> bool:
        """Return whether its process still runs, for example after the sweep itself was killed."""
        started_s = None if self.pid is None else _process_start_s(self.pid)
        return started_s is not None and self.process_s is not None and abs(started_s - self.process_s) < 1


def load_trials(sweep: Path) -> list[Trial]:
    """Return the runs in the folder of a sweep, by number."""
    found = []
    for path in sorted(sweep.glob(f"*/{FILE}")):
        try:
            content = json.loads(read_limited(path, max_bytes=_MAX_BYTES))
            record = RunRecord(**content["record"]) if content.get("record") else None
            found.append(Trial(**{**content, "record": record}))
        except (OSError, ValueError, TypeError, AttributeError):
            raise SetupError(f"{path} cannot be read. Delete its folder to repeat this run.") from None
    return sorted(found, key=lambda trial: trial.number)


def run_folder(sweep: Path, trial: Trial) -> Path | None:
    """Return the folder with the journal of a run: its own, or the newest folder below it."""
    folder = sweep / trial.folder_name
    if (folder / _JOURNAL).is_file():
        return folder
    inner = [path for path in folder.glob(f"*/{_JOURNAL}") if path.is_file()]
    return max(inner, key=lambda path: path.stat().st_mtime).parent if inner else None


@dataclass(frozen=True)
class Outcome:
    """A run with what its journal says; without a journal, there are no metrics."""

    trial: Trial
    metrics: dict[str, dict[str, Any]]
    elapsed_s: float | None
    state: str  # of the journal
    folder: Path

    def result(self, metric: str) -> float | None:
        """Return the best value of a metric."""
        best = self.metrics.get(metric, {}).get("best")
        return float(best) if isinstance(best, (int, float)) else None


def outcome_of(sweep: Path, trial: Trial, modes: Mapping[str, Mode | None]) -> Outcome:
    """Read the journal of a run; `modes` says for some metrics whether lower or higher is better."""
    folder = run_folder(sweep, trial)
    if folder is None:
        return Outcome(trial, {}, None, "", sweep / trial.folder_name)
    from flodl.monitor.snapshot import summary

    try:
        found = summary(folder, modes=modes)
    except (FlodlError, OSError):
        return Outcome(trial, {}, None, "", folder)
    return Outcome(trial, found["metrics"], found["elapsed_s"], found["state"], folder)


def choose_metric(outcomes: list[Outcome], mode: Mode | None) -> tuple[str, str]:
    """Return the metric to judge runs by, and why; empty if no run has recorded one.

    A metric of the evaluation comes first, then one that is better when it is higher, then the loss. With a
    `mode`, metrics whose names say the same direction come before all others.
    """
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.metrics)
    found = main_metric([name for name in names if mode and known_mode(name) == mode] or names)
    if found is None:
        return "", ""
    return found, "the first metric" if known_mode(found) is None else "by its name"


def check_recorded(outcomes: list[Outcome], metric: str, origin: str) -> None:
    """Raise if runs have finished, and none of them has recorded the metric that was asked for."""
    finished = [outcome for outcome in outcomes if outcome.trial.state == "finished"]
    if not finished or any(metric in outcome.metrics for outcome in finished):
        return
    known = sorted({name for outcome in finished for name in outcome.metrics})
    hint = (
        suggestion(metric, known, known_as="metrics")
        if known
        else "It has recorded no metrics: let the program write its journal to the folder that it is given."
    )
    raise SetupError(
        f"{origin}: run {finished[0].trial.folder_name} has finished without the metric {metric!r}. {hint} "
        "Finished runs are kept: the same command with another --metric continues the sweep"
        f"{'.' if known else '; --retry runs those without metrics again.'}"
    )


def observations(outcomes: list[Outcome], metric: str) -> list[Observation]:
    """Return the runs as a search sees them."""
    return [
        Observation(
            outcome.trial.values,
            outcome.result(metric) if outcome.trial.state == "finished" else None,
            is_running=outcome.trial.state in ("running", "interrupted"),
        )
        for outcome in outcomes
    ]


def _process_start_s(pid: int) -> float | None:
    import psutil  # type: ignore[import-untyped]

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return float(process.create_time())
    except (psutil.Error, OSError):
        return None


def relative(path: Path) -> str:
    """Return a path as a user would type it: relative if it is below the working directory."""
    shown = os.path.relpath(path)
    return str(path) if shown.startswith("..") else shown

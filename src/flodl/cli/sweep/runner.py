"""Run a sweep: start its runs, wait for them, and leave everything resumable when it is stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from flodl.cli.execution.exit_codes import ending_signal
from flodl.cli.execution.runner import start_plan
from flodl.core import lock
from flodl.core.errors import SetupError
from flodl.core.metric_modes import Mode, known_mode, mode_of_metric

from .commands import RunCommands
from .search import ENGINE_SEARCHES, Search
from .trials import (
    OUTPUT,
    Outcome,
    Trial,
    check_recorded,
    choose_metric,
    load_trials,
    observations,
    outcome_of,
    run_folder,
)

_POLL_S = 0.1
_SAVED = 75  # the exit code of a Trainer that has saved its run


@dataclass
class SweepRun:
    """The state of a sweep while it runs."""

    folder: Path
    commands: RunCommands
    search: Search
    jobs: int = 1
    retry: bool = False
    report: Callable[[str, Outcome], None] = lambda _what, _outcome: None
    trials: dict[int, Trial] = field(default_factory=dict)
    children: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    stopped_by: int = 0  # the signal that stops the sweep
    _ended: dict[tuple[int, str], Outcome] = field(default_factory=dict)  # by number and judged metric

    def run(self) -> int:
        """Run everything that has not run yet. Return 0, or the signal that stopped the sweep."""
        self.trials = {trial.number: trial for trial in load_trials(self.folder)}
        with _exclusive(self.folder), self._signals():
            self._settle_earlier()
            self._check_metric()
            while not self.stopped_by or self.children:
                self._collect()
                while not self.stopped_by and len(self._running()) < self.jobs and self._start_next():
                    pass
                if not self._running() and (self.stopped_by or self._next_number() is None):
                    break
                time.sleep(_POLL_S)
        return self.stopped_by

    @property
    def metric(self) -> tuple[str, Mode, str]:
        """The metric that runs are judged by, its mode, and why it is this one."""
        definition = self.commands.definition
        name, reason = self._judged()
        found = [outcome.metrics[name]["mode"] for outcome in self.outcomes() if name in outcome.metrics]
        return name, definition["mode"] or (found[0] if found else mode_of_metric(name)), reason

    @property
    def mode_is_assumed(self) -> bool:
        """Whether neither the sweep nor the name of the metric says which values are better."""
        name, _ = self._judged()
        if not name or self.commands.definition["mode"]:
            return False
        found = [outcome.metrics[name] for outcome in self.outcomes() if name in outcome.metrics]
        return bool(found[0].get("mode_is_assumed")) if found else known_mode(name) is None

    def outcomes(self) -> list[Outcome]:
        """Return all runs so far, with their results."""
        return self._outcomes(self._judged()[0])

    def _judged(self) -> tuple[str, str]:
        """Return the metric that runs are judged by, and why; empty if no run has recorded one."""
        definition = self.commands.definition
        if definition["metric"] is not None:
            return definition["metric"], definition.settings["metric"].origin
        return choose_metric(self._outcomes(""), definition["mode"])

    def _outcomes(self, judged_by: str) -> list[Outcome]:
        return [self._outcome(number, judged_by) for number in sorted(self.trials)]

    def _outcome(self, number: int, judged_by: str) -> Outcome:
        """Return a run with its result; the journal of a run that has ended is read once per metric."""
        trial, known = self.trials[number], self._ended.get((number, judged_by))
        if known is None or known.trial is not trial or trial.state == "running":
            modes: dict[str, Mode | None] = {judged_by: self.commands.definition["mode"]} if judged_by else {}
            known = self._ended[number, judged_by] = outcome_of(self.folder, trial, modes)
        return known

    def _settle_earlier(self) -> None:
        """Find out what became of runs that a killed sweep left behind, and choose those to run again."""
        without_metrics = self._without_metrics() if self.retry else ()
        for number, trial in self.trials.items():
            if trial.state == "running" and not trial.is_alive():
                self._set(number, self._state_from_journal(trial))
            elif self.retry and (trial.state == "failed" or number in without_metrics):
                self._set(number, replace(trial, state="interrupted"))

    def _without_metrics(self) -> list[int]:
        """Return the runs that have finished without any metric, if one was asked for or others have one."""
        outcomes = self._outcomes("")
        if self.commands.definition["metric"] is None and not any(one.metrics for one in outcomes):
            return []
        return [one.trial.number for one in outcomes if one.trial.state == "finished" and not one.metrics]

    def _state_from_journal(self, trial: Trial) -> Trial:
        is_done = outcome_of(self.folder, trial, {}).state == "finished"
        return replace(trial, state="finished" if is_done else "interrupted", pid=None)

    def _running(self) -> list[int]:
        return [number for number, trial in self.trials.items() if trial.state == "running"]

    def _next_number(self) -> int | None:
        """Return the run to start next: one that was interrupted, or a new one."""
        for number in sorted(self.trials):
            if self.trials[number].state == "interrupted":
                return number
        return next((at for at in range(1, self.search.num_runs + 1) if at not in self.trials), None)

    def _start_next(self) -> bool:
        number = self._next_number()
        if number is None:
            return False
        trial = self.trials.get(number)
        is_resumed = trial is not None
        if trial is None:
            trial = Trial(number, self._propose(number))
        plan = self.commands.plan(trial.values, trial.folder_name, resume=is_resumed)
        trial = replace(trial, record=self.commands.record(trial.values))
        trial.save(self.folder)
        with open(self.folder / trial.folder_name / OUTPUT, "ab") as output:
            child = start_plan(plan, output)
        self.children[number] = child
        self._set(number, trial.with_process(child.pid))
        again = "resumes" if run_folder(self.folder, trial) is not None else "starts again"
        self.report(
            again if is_resumed else "starts", Outcome(self.trials[number], {}, None, "", self.folder)
        )
        return True  # fmt: skip

    def _propose(self, number: int) -> dict[str, Any]:
        name, mode, _reason = self.metric
        outcomes = self.outcomes()
        is_engine = self.commands.definition["search"] in ENGINE_SEARCHES
        finished = [outcome for outcome in outcomes if outcome.trial.state == "finished"]
        if is_engine and finished and all(outcome.result(name) is None for outcome in finished):
            recorded = sorted({metric for outcome in finished for metric in outcome.metrics})
            known = f"They recorded {', '.join(recorded)}." if recorded else "They recorded no metrics."
            raise SetupError(
                f"the search needs a metric, but no finished run has {name or 'one'!r}. {known} Name one "
                "with --metric, and let the program record it in the folder that it is given."
            )
        return self.search.propose(number - 1, observations(outcomes, name), mode)

    def _collect(self) -> None:
        """Record what has ended."""
        for number in self._running():
            trial, child = self.trials[number], self.children.get(number)
            if child is None:  # a process of an earlier, killed sweep
                if not trial.is_alive():
                    self._finish(number, self._state_from_journal(trial))
                continue
            if (code := child.poll()) is None:
                continue
            del self.children[number]
            ended = replace(trial, exit_code=code, signal=_ending_signal(child), pid=None)
            if code and (self.stopped_by or code == _SAVED):
                self._finish(number, self._state_from_journal(ended))
            else:
                self._finish(number, replace(ended, state="failed" if code else "finished"))
            if code == _SAVED and not self.stopped_by:  # someone stopped the run itself
                self.stopped_by = signal.SIGINT

    def _finish(self, number: int, trial: Trial) -> None:
        self._set(number, trial)
        name, mode, _reason = self.metric
        self.report(trial.state, outcome_of(self.folder, trial, {name: mode} if name else {}))
        self._check_metric()

    def _check_metric(self) -> None:
        asked = self.commands.definition.settings["metric"]
        if asked.value is not None:
            check_recorded(self.outcomes(), asked.value, asked.origin)

    def _set(self, number: int, trial: Trial) -> None:
        self.trials[number] = trial
        trial.save(self.folder)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        """Forward a signal to the runs, which save themselves. A second one kills them."""
        kill = bool(self.stopped_by)
        self.stopped_by = number
        for child in list(self.children.values()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL if kill else number)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        previous = {}
        if threading.current_thread() is threading.main_thread():
            previous = {
                number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)
            }
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            for child in self.children.values():  # an error stopped the sweep
                child.terminate()


def _ending_signal(child: subprocess.Popen[bytes]) -> str | None:
    """Return the name of the signal that ended a run, or None."""
    command = child.args
    program = str(command[0]) if isinstance(command, list) else ""
    return ending_signal(child.returncode, program)


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold the lock of a sweep: two of them would start the same runs."""
    with open(folder / ".lock", "w") as file:
        if not lock.acquire(file.fileno(), wait=False):
            raise SetupError(f"another `fdl sweep` runs in {folder}. Wait for it, or pass another --out.")
        yield

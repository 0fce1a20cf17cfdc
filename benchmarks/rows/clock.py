"""Rivals that take turns: each is set up within a limit, and what did not fit is reported with the reason."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from budget import OverBudget, budget
from harness import Timing, paired_ratio, take_turns, timed


@dataclass(frozen=True)
class Rival:
    """Something to time: `run` does all of it once; `facts` are added to its result."""

    run: Callable[[], object]
    facts: Callable[[], Mapping[str, Any]] = dict

    def timed(self, repeats: int) -> Sequence[float]:
        """Return the seconds of each of `repeats` runs."""
        return timed(self.run, repeats)


@dataclass
class Clock:
    """The time that is left to a row; its rivals run in this process."""

    seconds: float
    started: float = field(default_factory=time.perf_counter)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        return self.seconds - (time.perf_counter() - self.started)

    def set_up(self, makers: Mapping[str, Callable[[], Rival]], *, reserve_s: float) -> dict[str, Rival]:
        """Make the rivals; `reserve_s` is kept for the measurement."""
        rivals = {}
        for name, make in makers.items():
            try:
                with budget(self.left_s - reserve_s):
                    rivals[name] = make()
                    rivals[name].run()
            except OverBudget as error:
                self.failures[name] = str(error)
                rivals.pop(name, None)
            except Exception as error:
                traceback.print_exc()
                self.failures[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
                rivals.pop(name, None)
        return rivals

    def measure(self, rivals: Mapping[str, Rival], *, rounds: int) -> dict[str, Timing]:
        """Let the rivals take turns; fewer rounds if there is no time for all."""
        if not rivals:
            return {}
        began = time.perf_counter()
        turns = {name: rival.timed for name, rival in rivals.items()}
        take_turns(turns, rounds=1)
        one = time.perf_counter() - began
        return take_turns(turns, rounds=max(2, min(rounds, int(self.left_s / one))))


def results(
    rivals: Mapping[str, Rival], timings: Mapping[str, Timing], *, per_run: Mapping[str, float], ours: str
) -> dict[str, Any]:
    """Return the result of each rival; `per_run` names what a run consists of, such as steps."""
    found: dict[str, Any] = {}
    best = min(
        (timing.median_s for name, timing in timings.items() if not name.startswith(ours)), default=None
    )
    for name, timing in timings.items():
        found[name] = {
            "ms": timing.median_s / per_run["steps"] * 1000,
            "best_ms": timing.best_s / per_run["steps"] * 1000,
            "jitter": timing.jitter,
            **{f"{unit}_per_s": n / timing.median_s for unit, n in per_run.items() if unit != "steps"},
            **rivals[name].facts(),
        }
        if name.startswith(ours) and best is not None:
            rival = min(
                (other for other in timings if not other.startswith(ours)), key=lambda o: timings[o].median_s
            )
            found[name]["best_rival"] = rival
            found[name]["over_best_rival"] = 1 / paired_ratio(timing, timings[rival])
    return found

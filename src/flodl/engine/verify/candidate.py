"""Builds the candidate of a trial: a recorded or compiled runner, with the faster memory format."""

from __future__ import annotations

import time
import warnings
from functools import partial
from typing import Any

import torch

from ..capture.conditions import as_recorded, can_record
from ..capture.recording import rehearse
from ..capture.runner import RecordedRunner, Runner
from ..compile.log_methods import LogMethods
from ..compile.memory_format import ROUNDS, Layout, LayoutChoice, candidate_layouts, fastest
from ..compile.runner import CompiledRunner, compile_program
from ..device.error_text import error_summary
from ..device.timing import now_s
from ..errors import NotCapturable
from ..guards.cheap import CheapGuard
from ..guards.recompile import GuardFailed
from ..optimizer.prepare import Readiness
from ..program.program import StepBody
from ..program.runner import EagerRunner, Micro
from ..settings import Tier
from ..state.snapshot import Snapshot
from .reruns import rerun

# How many models of one class a process may compile if torch splits their code at graph breaks.
MAX_MODELS = 256


class CandidateBuilder:
    """Makes one candidate for a tier and prepares it for each window; `updates` if its update is included."""

    def __init__(
        self,
        tier: Tier,
        body: StepBody,
        readiness: Readiness,
        *,
        updates: bool,
        tune: str | None = None,
        layout: LayoutChoice | None = None,
    ) -> None:
        # Whether the eager step waits for the device; compiled, it may not.
        self.is_waiting = False
        self.candidate: Runner | None = None
        self.cost_s = 0.0
        self._tier = tier
        self._body = body
        self._readiness = readiness
        self._updates = updates
        self._tune = tune
        # Known from the start if the worker process has measured it.
        self._layout = layout
        self._guard: CheapGuard | None = None

    @property
    def summary(self) -> str:
        """What the report says about how the candidate was made; empty or starting with a semicolon."""
        runner = self.candidate
        words = ""
        if isinstance(runner, RecordedRunner) and not runner.records_update:
            reason = self._readiness.reason
            if self._readiness.capturable:
                reason = "gradients are averaged over ranks before it, and graphs carry values"
            words = f"; the update stays outside: {reason}"
        elif isinstance(runner, RecordedRunner) and not runner.update_inside:
            words = "; the update is recorded apart, since gradients are averaged over ranks before it"
        if isinstance(runner, RecordedRunner) and runner.draws_on_host:
            words += "; random numbers that the step draws on the CPU stay as they were recorded"
        layout = f"; {self._layout.summary}" if self._layout is not None and self._tier == "compiled" else ""
        return f"{layout}{words}"

    def what_changed(self) -> str | None:
        """Name what has changed since the candidate was made."""
        changed = self._guard.what_changed() if self._guard is not None else None
        return changed or (self.candidate.what_changed() if self.candidate is not None else None)

    def make_room(self, runner: Runner | None = None) -> None:
        """Drop the recordings of the candidate while eager runs: together they need the memory of two steps.

        `record_again` makes them again, which takes about as long as a step.
        """
        runner = runner or self.candidate
        if isinstance(runner, RecordedRunner) and runner.update_program is None:
            runner.forget_all()

    def record_again(self, window: list[Micro]) -> None:
        """Make the recordings that were dropped, as the program runs now; nothing is compiled."""
        started = time.perf_counter()
        if isinstance(self.candidate, RecordedRunner):
            for micro in window:
                self.candidate.learn(micro)
        self.cost_s += time.perf_counter() - started

    def recompile(self, window: list[Micro], before: Snapshot) -> None:
        """Compile the candidate once more, for the conditions that it was found to run under."""
        assert self.candidate is not None
        before.restore()
        compile_by_running(self.candidate.body, window, before, updates=self._updates)
        before.restore()

    def prepare(self, window: list[Micro], before: Snapshot) -> Runner:
        """Return the candidate, prepared for a window, and restore the state."""
        started = time.perf_counter()
        if self.candidate is None:
            self._guard = CheapGuard(self._body)
            self.candidate = self._build(window, before)
        self._learn(self.candidate, window, before)
        self.cost_s += time.perf_counter() - started
        return self.candidate

    def _learn(self, candidate: Runner, window: list[Micro], before: Snapshot) -> None:
        for micro in window:
            learn(candidate, micro, before, updates=self._updates)
            before.restore()

    def _build(self, window: list[Micro], before: Snapshot) -> Runner:
        """Make the candidate; if images can have two memory formats, the one measured faster.

        If that is known already, only this one is made.
        """
        if self._tier != "compiled":
            return self._runner(self._body)
        candidates: dict[Layout | None, Runner] = {}
        times_s: dict[Layout | None, float] = {}
        layouts = candidate_layouts(self._body) if self._layout is None else (self._layout.layout,)
        bodies = compile_program(self._body, tune=self._tune, layouts=layouts)
        for layout, body in bodies.items():
            try:
                compile_by_running(body, window, before, updates=self._updates)
                if self.is_waiting:
                    before.restore()
                    copies = [as_recorded(micro) for micro in window]
                    rehearse(partial(rerun, EagerRunner(body), copies, updates=self._updates))
                candidates[layout] = self._runner(body)
                if len(bodies) == 1:
                    break
                times_s[layout] = self._time(candidates[layout], window, before)
                # Recorded again if it is the fastest: two recordings at a time need twice the memory.
                self.make_room(candidates[layout])
            except (NotCapturable, GuardFailed):
                candidates.pop(layout, None)
                if layout == list(bodies)[-1] and not candidates:
                    raise
        before.restore()
        if len(times_s) > 1:
            self._layout = fastest(times_s)
            return candidates[self._layout.layout]
        return next(iter(candidates.values()))

    def _runner(self, body: StepBody) -> Runner:
        if self._body.device.type != "cuda":
            return CompiledRunner(body)
        # Carried values are restored in Python, from copies of this window, if the update is skipped.
        restores = body.undo.carried is not None
        apart = body.reduction is not None and self._readiness.capturable and not restores
        return RecordedRunner(body, update_inside=self._updates, update_apart=apart)

    def _time(self, runner: Runner, window: list[Micro], before: Snapshot) -> float:
        """Return the shortest of a few times of a runner, in seconds per micro-batch."""
        before.restore()
        self._learn(runner, window, before)
        times_s = []
        for _ in range(ROUNDS):
            before.restore()
            started = now_s(self._body.device)
            rerun(runner, window, updates=self._updates)
            times_s.append((now_s(self._body.device) - started) / len(window))
        return min(times_s)


def learn(runner: Runner, micro: Micro, before: Snapshot, *, updates: bool) -> None:
    """Prepare a runner for a micro-batch; if a guard of compiled code fails, compile it once more."""
    try:
        runner.learn(micro)
    except GuardFailed:
        before.restore()
        compile_by_running(runner.body, [micro], before, updates=updates)
        before.restore()
        runner.learn(micro)


def compile_by_running(body: StepBody, window: list[Micro], before: Snapshot, *, updates: bool) -> None:
    """Compile a body for the shapes of a window by running it, from the state before it.

    If it is to be recorded, it runs on a copy of the window, as in the recording.
    """
    from torch._dynamo.utils import counters

    if can_record(body.device):
        window = [as_recorded(micro) for micro in window]
    breaks = sum(counters["graph_break"].values())
    try:
        with warnings.catch_warnings(), torch._dynamo.config.patch(_dynamo_config()):
            # Advice for people who compile by hand; the model's own warnings came in the eager steps.
            warnings.simplefilter("ignore")
            # Twice: the second run may still tune what the first one compiled.
            for _ in range(2):
                before.restore()
                if can_record(body.device) and body.undo.carried is not None:
                    body.undo.carried.copy_as_recorded()
                rerun(EagerRunner(body), window, updates=updates)
    except Exception as error:
        raise NotCapturable(f"torch's compiler failed: {error_summary(error)}") from error
    body.has_graph_breaks |= sum(counters["graph_break"].values()) > breaks


def _dynamo_config() -> dict[str, Any]:
    """Return the settings of torch's compiler while training waits for it.

    By default, code that was compiled too often runs eagerly without notice, but a process may train many
    models of one class. The garbage of compiling is left to Python's regular collections. Log messages, which
    the eager steps have written, would split the program: transformers logs while it computes a loss.
    """
    limits = {"recompile_limit": MAX_MODELS, "accumulated_recompile_limit": 4 * MAX_MODELS}
    wanted = {
        "fail_on_recompile_limit_hit": True,
        "run_gc_after_compile": False,
        "ignore_logging_functions": LogMethods(),
        **limits,
    }
    return {name: value for name, value in wanted.items() if hasattr(torch._dynamo.config, name)}

"""Decides when a step may be compiled: immediately if requested, otherwise after a worker process did it."""

from __future__ import annotations

import time

import torch

from ..program.program import StepBody
from ..program.runner import Micro
from ..report import Cause, Journal
from .background import BackgroundCompilation
from .memory_format import LayoutChoice

# Training that has run this long is likely to run long enough to pay for a compilation.
COMPILE_AFTER_S = {"cuda": 5.0, "cpu": 30.0}


class NotCompiled(Exception):
    """The step will not be compiled; the message says why."""


class CompilePolicy:
    """When to compile a step; with tier="auto", a worker process fills the compiler's cache first."""

    def __init__(self, body: StepBody, journal: Journal) -> None:
        self._body = body
        self._settings = body.settings
        self._journal = journal
        # When training has run long enough to compile; immediately if that was requested.
        after_s = COMPILE_AFTER_S.get(body.device.type, 0.0) if body.settings.tier == "auto" else 0.0
        self.due_s = time.perf_counter() + after_s
        self._background: BackgroundCompilation | None = None
        # Which kernels were autotuned, and the memory format that was clearly faster, once that is known.
        self.tune: str | None = None
        self.layout: LayoutChoice | None = None
        # Whether the cache is filled and was not used yet.
        self.is_ready = False

    @property
    def is_running(self) -> bool:
        """Whether a worker process is compiling."""
        return self._background is not None

    def may_start(self, micro: Micro, step: int) -> bool:
        """Return whether this process may compile now; raise if it never should."""
        if self._settings.tier == "auto":
            self.is_ready = self.is_ready or self._is_in_cache(micro, step)
            return self.is_ready
        if self._settings.tune is not None:
            background = BackgroundCompilation(self._body, micro)
            background.wait()
            self._take_findings(background, step)
        return True

    def close(self) -> None:
        """End the worker process, if there is one; if training continues later, a new one is started."""
        if self._background is not None:
            self._background.close()
            self._background = None

    def _is_in_cache(self, micro: Micro, step: int) -> bool:
        """Return whether a worker process has filled the compiler's cache; start one when it is time."""
        if torch.are_deterministic_algorithms_enabled():
            raise NotCompiled(
                "compiling would change the rounding, and deterministic algorithms were requested"
            )
        if self._background is None:
            if time.perf_counter() < self.due_s:
                return False
            self._background = BackgroundCompilation(self._body, micro)
        if not self._background.done:
            return False
        self._take_findings(self._background, step)
        failure, self._background = self._background.failure, None
        if failure is not None:
            raise NotCompiled(f"not compiled: {failure}")
        return True

    def _take_findings(self, background: BackgroundCompilation, step: int) -> None:
        self.tune, self.layout = background.tune, background.layout
        if self._settings.tune is not None and background.tune is None and background.failure is None:
            limit = f"{self._settings.tune_budget_s:g} s"
            reason = f"autotuning kernels took longer than {limit} and was stopped"
            self._journal.add(step, "tune", Cause.TUNING_LIMIT, reason)

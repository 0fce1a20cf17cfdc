"""When a step may be compiled: where that was asked for at once, else when it holds nobody up."""

from __future__ import annotations

import time

import torch

from ..program.program import StepBody
from ..program.runner import Micro
from ..report import Journal
from .background import BackgroundCompilation
from .memory_format import LayoutChoice

# Training that has gone on for so long is likely to go on for long enough to pay for a compilation.
COMPILE_AFTER_S = {"cuda": 5.0, "cpu": 30.0}


class NotCompiled(Exception):
    """The step will not be compiled; says why."""


class CompilePolicy:
    """The way to a compiled step; under tier="auto" another process fills the compiler's cache first."""

    def __init__(self, body: StepBody, journal: Journal) -> None:
        self._body = body
        self._settings = body.settings
        self._journal = journal
        self._started_s = time.perf_counter()
        self._beside: BackgroundCompilation | None = None
        # Which kernels were tried out, and which layout was found to be clearly faster, once that is done.
        self.tune: str | None = None
        self.layout: LayoutChoice | None = None
        # Whether the cache is filled, and nothing was made of it yet.
        self.is_ready = False

    @property
    def is_running(self) -> bool:
        """Whether another process is compiling."""
        return self._beside is not None

    def may_start(self, micro: Micro, step: int) -> bool:
        """Say whether this process may compile now; raises where it never should."""
        if self._settings.tier == "auto":
            self.is_ready = self.is_ready or self._was_compiled_beside(micro, step)
            return self.is_ready
        if self._settings.tune is not None:
            beside = BackgroundCompilation(self._body, micro)
            beside.wait()
            self._take_findings(beside, step)
        return True

    def close(self) -> None:
        """End the other process, if there is one; where training goes on later, another is started."""
        if self._beside is not None:
            self._beside.close()
            self._beside = None

    def _was_compiled_beside(self, micro: Micro, step: int) -> bool:
        """Say whether another process has filled the compiler's cache; start it where it is time."""
        if torch.are_deterministic_algorithms_enabled():
            raise NotCompiled(
                "compiling would change the rounding, and deterministic algorithms were asked for"
            )
        if self._beside is None:
            if time.perf_counter() - self._started_s < COMPILE_AFTER_S[self._body.device.type]:
                return False
            self._beside = BackgroundCompilation(self._body, micro)
        if not self._beside.done:
            return False
        self._take_findings(self._beside, step)
        failure, self._beside = self._beside.failure, None
        if failure is not None:
            raise NotCompiled(f"not compiled: {failure}")
        return True

    def _take_findings(self, beside: BackgroundCompilation, step: int) -> None:
        self.tune, self.layout = beside.tune, beside.layout
        if self._settings.tune is not None and beside.tune is None and beside.failure is None:
            limit = f"{self._settings.tune_budget_s:g} s"
            self._journal.say(step, "tune", f"trying out kernels took longer than {limit} and was left")

"""Decides when a step may be compiled: immediately if requested, otherwise after a worker process did it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import torch

from ..program.program import StepBody
from ..program.runner import Micro
from ..report import Cause, Journal
from .background import BackgroundCompilation, layout_of
from .earlier_starts import EarlierStarts, step_key
from .memory_format import LayoutChoice
from .warm_up import warm_up

# Training that has run this long is likely to run long enough to pay for a compilation.
COMPILE_AFTER_S = {"cuda": 5.0, "cpu": 30.0}


class NotCompiled(Exception):
    """The step will not be compiled; the message says why."""


class CompilePolicy:
    """When to compile a step; with tier="auto", a worker process fills the compiler's cache first.

    If an earlier start of the same program has filled it, the step is compiled as soon as it is warm.
    """

    def __init__(self, body: StepBody, journal: Journal) -> None:
        self._body = body
        self._settings = body.settings
        self._journal = journal
        # When training has run long enough to compile; immediately if that was requested.
        is_auto = body.settings.tier == "auto" and body.device.type in COMPILE_AFTER_S
        self._long_enough_s = time.perf_counter() + (COMPILE_AFTER_S[body.device.type] if is_auto else 0.0)
        self._earlier = EarlierStarts(body.device) if is_auto else None
        # The step whose note is looked for, or written after a promotion; and what the note says.
        self._key: str | None = None
        self._findings: Mapping[str, Any] | None = None
        self._may_be_known = self._prepare_for_known()
        # When `may_start` is worth a call.
        self.due_s = 0.0 if self._may_be_known else self._long_enough_s
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

    def confirm(self) -> None:
        """The compiled step is used: let the next start of this program compile it at once."""
        if self._earlier is not None and self._key is not None and self._findings is not None:
            self._earlier.add(self._key, self._findings)

    def retract(self) -> None:
        """The compiled step was refused, or is slower: let the next start look at it as this one did."""
        if self._earlier is not None and self._key is not None:
            self._earlier.forget(self._key)

    def close(self) -> None:
        """End the worker process, if there is one; if training continues later, a new one is started."""
        if self._background is not None:
            self._background.close()
            self._background = None

    def _prepare_for_known(self) -> bool:
        """Return whether an earlier start has compiled a step; if so, load the compiler in a thread."""
        note = None if self._earlier is None else self._earlier.latest()
        if note is None:
            return False
        on_cpu, modules = self._body.device.type == "cpu", note["modules"]
        threading.Thread(target=warm_up, args=(on_cpu, modules, [*note["sources"]])).start()
        return True

    def _is_in_cache(self, micro: Micro, step: int) -> bool:
        """Return whether a worker process has filled the compiler's cache; start one when it is time."""
        if torch.are_deterministic_algorithms_enabled():
            raise NotCompiled(
                "compiling would change the rounding, and deterministic algorithms were requested"
            )
        if self._may_be_known:
            self._may_be_known = False
            if self._is_known(micro):
                return True
            self.due_s = self._long_enough_s
        if self._background is None:
            if time.perf_counter() < self.due_s:
                return False
            self._key = None if self._earlier is None else step_key(self._body, micro)
            self._background = BackgroundCompilation(self._body, micro)
        if not self._background.done:
            return False
        self._take_findings(self._background, step)
        failure, self._background = self._background.failure, None
        if failure is not None:
            raise NotCompiled(f"not compiled: {failure}")
        return True

    def _is_known(self, micro: Micro) -> bool:
        """Return whether an earlier start has compiled this step, and take what it found."""
        assert self._earlier is not None
        self._key = step_key(self._body, micro)
        self._findings = None if self._key is None else self._earlier.find(self._key)
        if self._findings is None:
            return False
        self.tune, self.layout = self._findings.get("tune"), layout_of(self._findings, "in an earlier start")
        return True

    def _take_findings(self, background: BackgroundCompilation, step: int) -> None:
        self.tune, self.layout = background.tune, background.layout
        self._findings = {**background.findings, "tune": background.tune}
        if self._settings.tune is not None and background.tune is None and background.failure is None:
            limit = f"{self._settings.tune_budget_s:g} s"
            reason = f"autotuning kernels took longer than {limit} and was stopped"
            self._journal.add(step, "tune", Cause.TUNING_LIMIT, reason)

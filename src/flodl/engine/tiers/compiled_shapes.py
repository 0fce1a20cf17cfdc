"""Further shapes that a compiled step is compiled for, because they occur often."""

from __future__ import annotations

import time

from ..batch.signature import Signature
from ..capture.runner import RecordedRunner
from ..compile.policy import CompilePolicy, NotCompiled
from ..program.outcome import Outcome
from ..program.program import StepBody
from ..program.runner import EagerRunner, Micro
from ..report import Cause, Journal
from .record_shape import record_another

# How often a shape must have occurred. With tier="auto", training continues while a worker process compiles.
SEEN_BEFORE_COMPILING = {"compiled": 5, "auto": 16}
MAX_COMPILED_SHAPES = 7


class CompiledShapes:
    """Compiles a step for one further shape at a time, in a worker process first if the tier is automatic."""

    def __init__(self, body: StepBody, journal: Journal) -> None:
        self._body = body
        self._journal = journal
        self._policy: CompilePolicy | None = None
        # The shape that is being compiled, and those that were tried.
        self._pending: Signature | None = None
        self._tried: set[Signature] = set()
        self._refused = False
        self.cost_s = 0.0
        self.num_compiles = 0

    def begin(self) -> None:
        """Start again with a new runner."""
        self.close()
        self._tried.clear()
        self._refused = False

    def close(self) -> None:
        """End a compilation that runs in another process."""
        if self._policy is not None:
            self._policy.close()
        self._policy, self._pending = None, None

    def may_follow(self, signature: Signature) -> bool:
        """Return whether a shape may still be compiled."""
        is_open = signature not in self._tried and len(self._tried) < MAX_COMPILED_SHAPES
        return is_open and not self._refused

    def is_due(self, micro: Micro, count: int, step: int) -> bool:
        """Return whether to compile this shape now, which has occurred `count` times."""
        needed = SEEN_BEFORE_COMPILING.get(self._body.settings.tier)
        if needed is None or count < needed or not self.may_follow(micro.signature):
            return False
        if self._pending not in (None, micro.signature):
            return False
        if self._policy is None:
            self._policy, self._pending = CompilePolicy(self._body, self._journal), micro.signature
        try:
            return self._policy.may_start(micro, step)
        except NotCompiled as reason:
            self._refused = True
            self.close()
            refusal = f"other shapes are not compiled: {reason}"
            self._journal.add(step, "compiled", Cause.REFUSED, refusal)
            return False

    def record(
        self, runner: RecordedRunner, eager: EagerRunner, micro: Micro, step: int
    ) -> tuple[Outcome | None, str | None]:
        """Run a step eagerly, compile and record it for its shape, and compare the two."""
        self._tried.add(micro.signature)
        self.close()
        self.num_compiles += 1
        started = time.perf_counter()
        try:
            outcome, why_not = record_another(runner, eager, self._body, micro)
        finally:
            self.cost_s += time.perf_counter() - started
        if why_not is not None:
            reason = f"a batch of a different shape cannot be compiled: {why_not}"
            self._journal.add(step, "captured", Cause.REFUSED, reason)
        elif outcome is not None and not runner.fits(micro):
            self._tried.discard(micro.signature)  # not finite: try the next one
        return outcome, why_not

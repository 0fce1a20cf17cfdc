"""Reruns of a window: once more, with perturbed weights, in float32 or float64; and what they computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TypeVar

from torch import Tensor
from torch.autograd.graph import save_on_cpu

from flodl.core import log

from ..capture.runner import Runner
from ..device.autograd_history import has_live_history
from ..program.program import StepBody
from ..program.runner import EagerRunner, Micro
from ..state.snapshot import Snapshot, compared_state, reached_by
from .distances import MAX_FLOAT64_DISTANCE, Values, WindowOutputs, WindowResult
from .float64 import in_float64
from .gradients import Gradients, copy_gradients, full_float32
from .parts import window_parts
from .perturb import perturb

T = TypeVar("T")
# How many times a doubtful window is rerun from perturbed weights.
PERTURBATIONS = 3


class Reruns:
    """Runs windows of a step again, from the state before them; `updates` if the update is part of a run."""

    def __init__(self, body: StepBody, *, updates: bool) -> None:
        self._body = body
        self._updates = updates
        self._eager = EagerRunner(body)

    def perturbed(self, before: Snapshot, window: list[Micro]) -> Iterator[WindowResult]:
        """Rerun the window from perturbed weights, a few times; yield each result, with all gradients."""
        for seed in range(PERTURBATIONS):
            try:
                with self._restoring(before, window):
                    perturb(self._body, seed)
                    yield self._rerun(self._eager, window, before)
            except Exception as error:
                log.debug("cannot rerun from perturbed weights: %s: %s", type(error).__name__, error)

    def moved(self, runner: Runner, by: float, before: Snapshot, window: list[Micro]) -> WindowResult:
        """Run the window with a runner at weights that differ by a fraction of their size."""
        with self._restoring(before, window):
            perturb(self._body, 0, by)
            values = rerun(runner, window, updates=self._updates)
            runner.show_grads()
            return self.result_now(values, before)

    def in_float32(self, before: Snapshot, window: list[Micro]) -> WindowResult:
        """Run the window in full float32."""
        body = self._body.separate(settings=replace(self._body.settings, precision="fp32"))
        is_on_cuda = body.device.type == "cuda"

        def run() -> WindowResult:
            with self._restoring(before, window), full_float32() if is_on_cuda else nullcontext():
                return self.run(EagerRunner(body), before, window)

        return with_activations_on_host(run, offload=is_on_cuda)

    def in_float64(
        self, real: WindowResult, before: Snapshot, after: Snapshot, window: list[Micro]
    ) -> WindowResult | None:
        """Run a float32 window in float64; None if the step cannot, or draws different random numbers.

        For ResNet-20 with batches of 8, eager's float32 gradients were up to 0.007 from those in float64.
        """
        settings = self._body.settings
        clips = (settings.clip_norm, settings.clip_value) != (None, None)
        if settings.precision != "fp32" or (self._updates and clips):
            return (
                None  # the compared gradients were clipped by the update, for which there is no float64 state
            )
        if has_live_history(self._body.parameters):
            return None  # a live autograd history still refers to the float32 gradient accumulators
        drew = before.drew_random_numbers(after)
        if drew and self._body.device.type == "cuda":
            return None  # on CUDA, the offset of a generator does not say what was drawn
        # Recordings write to the statistics that the others save.
        body = self._body.separate()

        def run() -> tuple[WindowResult, bool]:
            with self._restoring(before, window), in_float64(body, window) as widened:
                found = self._rerun(EagerRunner(body), widened, before, updates=False)
                return found, not drew or after.cpu_rng_unchanged()

        try:
            found, draws_alike = with_activations_on_host(run, offload=body.device.type == "cuda")
        except Exception as error:
            log.debug("cannot run in float64: %s: %s", type(error).__name__, error)
            return None
        return found if draws_alike and found.distance(real) <= MAX_FLOAT64_DISTANCE else None

    @contextmanager
    def _restoring(self, before: Snapshot, window: list[Micro]) -> Iterator[None]:
        """Restore what only this run changes; the snapshots cover what the real run changed."""
        body = self._body
        before.restore()
        saved = reached_by(body, [micro.batch for micro in window], body.side_effects.written)
        try:
            yield
        finally:
            saved.restore()

    def run(self, runner: EagerRunner, before: Snapshot, window: list[Micro]) -> WindowResult:
        """Run the window once more with a runner."""
        before.restore()
        return self._rerun(runner, window, before)

    def _rerun(
        self, runner: EagerRunner, window: list[Micro], before: Snapshot, *, updates: bool | None = None
    ) -> WindowResult:
        values = rerun(runner, window, updates=self._updates if updates is None else updates)
        return self.result_now(values, before)

    def result_now(self, values: Values, before: Snapshot) -> WindowResult:
        """Return the present state and gradients as a result."""
        outputs = WindowOutputs(copy_gradients(self._body), values)
        return self.result(outputs, compared_state(self._body), before)

    def result(self, outputs: WindowOutputs, after: Mapping[str, Tensor], before: Snapshot) -> WindowResult:
        """Return what a run computed, split into parts."""
        parts = window_parts(self._body, outputs.gradients, after, before.tensors, outputs.values)
        return WindowResult(outputs, parts, self._body.device)


def rerun(runner: Runner, window: Iterable[Micro], *, updates: bool) -> Values:
    """Rerun a window for comparison; return the named values of its last micro-batch."""
    values: Values = {}
    for micro in window:
        values = (runner.run(micro) if updates else runner.run_without_update(micro)).values
        runner.body.undo.detach_carried()
    return values


def with_activations_on_host(run: Callable[[], T], *, offload: bool) -> T:
    """Run a forward and a backward pass; with `offload`, keep what is saved between them in host memory.

    In float32 or float64, activations take up to four times as much memory as in training. If the step does
    not support that, such as one with a transform of `torch.func`, it runs once more without.
    """
    if offload:
        try:
            with save_on_cpu():
                return run()
        except Exception as error:
            log.debug("cannot keep activations on the host: %s: %s", type(error).__name__, error)
    return run()


def set_gradients(body: StepBody, grads: Gradients) -> None:
    """Set the gradients of a step's parameters."""
    for parameter, grad in zip(body.parameters, grads):
        parameter.grad = None if grad is None else grad.to(parameter.device)

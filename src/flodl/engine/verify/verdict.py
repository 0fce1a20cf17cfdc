"""Decides whether a candidate may replace eager, from windows that both have run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from torch import Tensor

from flodl.core import log

from ..capture.runner import Runner
from ..device.autograd_history import has_live_history
from ..program.program import StepBody
from ..program.runner import EagerRunner, Micro
from ..settings import Tier
from ..state.snapshot import Snapshot, live_state
from .distances import (
    MAX_FLOAT64_DISTANCE,
    MOSTLY_ROUNDING,
    RoundingNoise,
    Values,
    WindowOutputs,
    WindowResult,
)
from .float64 import in_float64
from .gradients import (
    EAGER_ERROR_FACTOR,
    TOLERANCE,
    Gradients,
    copy_gradients,
    full_float32,
    relative_difference,
    same_gradients,
)
from .parts import part_distances, window_parts
from .perturb import perturb

VERIFIED_WINDOWS = 2
# How far eager's gradients may move in a rerun of the same window, with kernels that add in any order.
MAX_RERUN_DISTANCE = 0.01
# Up to this many times as far from exact gradients as eager, a window is doubtful rather than refused: with
# coarse rounding, one in many is. Then three of five windows must pass. It happens in float32 too, when the
# last bit decides on which side of a ReLU many values fall.
DOUBTFUL = 5.0
WINDOWS_IF_DOUBTFUL = 3
# A part that is mostly rounding may be off by this many times the size that counts as small.
MAX_ROUNDING = 10.0
MAX_DOUBTFUL = 2
# How many times a doubtful window is rerun from perturbed weights.
PERTURBATIONS = 3


class Verdict:
    """What is known about one candidate so far; `updates` if the candidate includes the update."""

    def __init__(self, tier: Tier, body: StepBody, *, updates: bool) -> None:
        self._tier = tier
        self._body = body
        self._tolerance = TOLERANCE[body.settings.precision]
        self._updates = updates
        self._eager = EagerRunner(body)
        self._passed = 0
        self._doubtful = 0
        self._repeats = True
        self._rounding = ""

    @property
    def is_accepted(self) -> bool:
        """Whether enough windows have passed."""
        return self._passed >= (WINDOWS_IF_DOUBTFUL if self._doubtful else VERIFIED_WINDOWS)

    @property
    def is_doubtful(self) -> bool:
        """Whether a window was neither passed nor refused."""
        return self._doubtful > 0

    @property
    def summary(self) -> str:
        """How close the candidate is to eager, and over how many updates."""
        equal = "equal to eager bit for bit"
        if self._tier == "compiled" or not self._repeats:
            equal = self._rounding or f"gradients within {self._tolerance:g} of eager's"
        if not self._repeats:
            equal += ", which does not repeat itself bit for bit here"
        of_all = f" of {self._passed + self._doubtful}" if self._doubtful else ""
        return f"{equal} over {self._passed}{of_all} updates"

    def judge(
        self, after: Snapshot, real: WindowOutputs, values: Values, before: Snapshot, window: list[Micro]
    ) -> str | None:
        """Compare the present state, the candidate's result of a window, with eager's.

        `values` are the candidate's named values. Return how it differs, or None if it passes or is doubtful.
        """
        doubtful = self._doubtful
        difference = self._difference(after, real, values, before, window)
        if difference is None and self._doubtful == doubtful:
            self._passed += 1
        return difference

    def _difference(
        self, after: Snapshot, eager: WindowOutputs, values: Values, before: Snapshot, window: list[Micro]
    ) -> str | None:
        if self._tier == "captured" and not (difference := self._difference_in_bits(after, eager.gradients)):
            return None
        candidate, real = self._result_now(values, before), self._result(eager, after.tensors, before)
        if self._tier == "captured" and self._repeats_itself(before, window):
            return difference
        off, strays = real.distance(candidate), real.outliers(candidate)
        if off <= self._tolerance and not strays:
            return None
        again = self._run(self._eager, before, window)
        if (apart := real.distance(again)) > max(MAX_RERUN_DISTANCE, 2 * self._tolerance):
            return (
                f"{_norm_error(off)}, and eager's own by {apart:.2g} when it runs again: state that the step "
                "keeps outside of parameters, buffers and plain attributes of modules cannot be restored"
            )
        exact = self._in_float64(real, before, after, window)
        is_finer = exact is not None or self._body.settings.precision != "fp32"
        exact = exact or self._in_float32(before, window)
        noise = RoundingNoise(real, again, exact, self._perturbed(before, window))
        return self._failure(real, candidate, exact, noise, is_finer=is_finer)

    def _difference_in_bits(self, after: Snapshot, eager: Gradients) -> str | None:
        difference = after.first_difference(Snapshot(self._body), updated=self._updates)
        candidate = copy_gradients(self._body)
        if difference is None and not self._updates and not same_gradients(eager, candidate):
            return _norm_error(relative_difference(eager, candidate))
        return difference

    def _failure(
        self,
        real: WindowResult,
        candidate: WindowResult,
        exact: WindowResult,
        noise: RoundingNoise,
        *,
        is_finer: bool,
    ) -> str | None:
        """Return why a candidate fails, by how far it and eager are from exact numbers."""
        off, mine, theirs = real.distance(candidate), exact.distance(candidate), exact.distance(real)
        doubt = ""
        # Written with `not`, so that NaN never passes.
        if not off <= self._tolerance:
            if mine <= EAGER_ERROR_FACTOR * noise.total:
                self._rounding = f"gradients {mine:.1g} from exact ones, eager's {theirs:.1g}"
            else:
                doubt = _exact_error(off, mine, theirs, self._tolerance)
                if not mine <= DOUBTFUL * max(noise.total, TOLERANCE["fp32"]):
                    return doubt
        ours = part_distances(exact.parts, candidate.parts)
        for name, apart in real.outliers(candidate).items():
            part, message = real.parts[name], f"{name} is off by {apart:.2g} of its size"
            limit = part.limit
            if not is_finer:
                # Without float64, parts that are mostly rounding cannot be recognized.
                limit = min(MOSTLY_ROUNDING, DOUBTFUL * limit)
            is_rounding = part.may_be_rounding and noise.eager_error(name) >= MOSTLY_ROUNDING
            enough = MAX_ROUNDING if is_rounding else limit
            if ours.get(name, apart) <= max(EAGER_ERROR_FACTOR * noise.of(name), enough):
                continue
            if not ours.get(name, apart) <= DOUBTFUL * max(noise.of(name), limit):
                return message
            doubt = doubt or message
        if doubt and self._doubtful >= MAX_DOUBTFUL:
            return doubt
        self._doubtful += bool(doubt)
        return None

    def _repeats_itself(self, before: Snapshot, window: list[Micro]) -> bool:
        """Return whether eager computes the same bits twice.

        Some kernels (cuDNN's, with autotuning) add in an order that changes from run to run.
        """
        candidate = copy_gradients(self._body)
        states, grads = [], []
        for _ in range(2):
            grads.append(self._run(self._eager, before, window).outputs.gradients)
            states.append(Snapshot(self._body))
        set_gradients(self._body, candidate)
        self._repeats = states[0].first_difference(states[1]) is None and same_gradients(*grads)
        return self._repeats

    def _perturbed(self, before: Snapshot, window: list[Micro]) -> Iterator[WindowResult]:
        """Rerun the window from perturbed weights, a few times; yield each result, with all gradients."""
        for seed in range(PERTURBATIONS):
            try:
                with self._restoring(before, window):
                    perturb(self._body, seed)
                    yield self._rerun(self._eager, window, before)
            except Exception as error:
                log.debug("cannot rerun from perturbed weights: %s: %s", type(error).__name__, error)

    def _in_float32(self, before: Snapshot, window: list[Micro]) -> WindowResult:
        """Run the window in full float32."""
        body = self._body.separate(settings=replace(self._body.settings, precision="fp32"))
        exactly = full_float32() if body.device.type == "cuda" else nullcontext()
        with self._restoring(before, window), exactly:
            return self._run(EagerRunner(body), before, window)

    def _in_float64(
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
        try:
            with self._restoring(before, window), in_float64(body, window) as widened:
                found = self._rerun(EagerRunner(body), widened, before, updates=False)
                draws_alike = not drew or after.cpu_rng_unchanged()
        except Exception as error:
            log.debug("cannot run in float64: %s: %s", type(error).__name__, error)
            return None
        return found if draws_alike and found.distance(real) <= MAX_FLOAT64_DISTANCE else None

    @contextmanager
    def _restoring(self, before: Snapshot, window: list[Micro]) -> Iterator[None]:
        """Restore what only this run changes; the snapshots cover what the real run changed."""
        body = self._body
        before.restore()
        saved = Snapshot(body, [micro.batch for micro in window], body.side_effects.written)
        try:
            yield
        finally:
            saved.reachable.restore()

    def _run(self, runner: EagerRunner, before: Snapshot, window: list[Micro]) -> WindowResult:
        """Run the window once more with a runner."""
        before.restore()
        return self._rerun(runner, window, before)

    def _rerun(
        self, runner: EagerRunner, window: list[Micro], before: Snapshot, *, updates: bool | None = None
    ) -> WindowResult:
        values = rerun(runner, window, updates=self._updates if updates is None else updates)
        return self._result_now(values, before)

    def _result_now(self, values: Values, before: Snapshot) -> WindowResult:
        return self._result(WindowOutputs(copy_gradients(self._body), values), live_state(self._body), before)

    def _result(self, outputs: WindowOutputs, after: Mapping[str, Tensor], before: Snapshot) -> WindowResult:
        return WindowResult(
            outputs, window_parts(self._body, outputs.gradients, after, before.tensors, outputs.values)
        )


def _exact_error(off: float, mine: float, theirs: float, tolerance: float) -> str:
    # If eager is exact, its error is not worth a mention.
    if theirs < tolerance / 10:
        return _norm_error(off)
    return f"{_norm_error(off)} from eager's; from exact ones by {mine:.2g}, eager's by {theirs:.2g}"


def _norm_error(off: float) -> str:
    return f"the gradients are off by {off:.2g} of their norm"


def rerun(runner: Runner, window: Iterable[Micro], *, updates: bool) -> Values:
    """Rerun a window for comparison; return the named values of its last micro-batch."""
    values: Values = {}
    for micro in window:
        values = (runner.run(micro) if updates else runner.run_without_update(micro)).values
    return values


def set_gradients(body: StepBody, grads: Gradients) -> None:
    """Set the gradients of a step's parameters."""
    for parameter, grad in zip(body.parameters, grads):
        parameter.grad = grad

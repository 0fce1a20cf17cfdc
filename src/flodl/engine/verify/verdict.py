"""Whether a candidate may stand in for eager, by the windows that both have run."""

from __future__ import annotations

import copy
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
# How far eager's gradients may be from those of the same window run again, by kernels that add in any order.
EAGER_AGAIN = 0.01
# Up to so many times as far from exact gradients as eager, a window may have been an unlucky one: where
# rounding is loose, one in many is. Then more than half of five have to be as close as they should.
# Float32 knows such windows, too, where the last bit decides on which side of a ReLU many values fall.
DOUBTFUL = 5.0
DOUBTED_WINDOWS = 3
# What is only rounding may be off by so many times what counts as small.
MOST_ROUNDING = 10.0
MOST_DOUBTFUL = 2
# How often a window in doubt is run from weights that moved by a bit.
PERTURBATIONS = 3


class Verdict:
    """What is known of one candidate so far; `updates` says whether its update is part of it."""

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
        return self._passed >= (DOUBTED_WINDOWS if self._doubtful else VERIFIED_WINDOWS)

    @property
    def summary(self) -> str:
        """How close the candidate is to eager, and over how many updates that was seen."""
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
        """Say what the candidate's end of the window, as it is now, has against it.

        `values` is what it named. None where nothing speaks against it, or not yet.
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
        candidate, real = self._end_now(values, before), self._end(eager, after.kept, before)
        if self._tier == "captured" and self._repeats_itself(before, window):
            return difference
        off, strays = real.distance(candidate), real.outliers(candidate)
        if off <= self._tolerance and not strays:
            return None
        again = self._run(self._eager, before, window)
        if (apart := real.distance(again)) > max(EAGER_AGAIN, 2 * self._tolerance):
            return (
                f"{_words(off)}, and eager's by {apart:.2g} from its own when it runs again: what the step "
                "keeps other than in parameters, buffers and plain attributes of modules cannot be put back"
            )
        exact = self._in_double(real, before, after, window)
        is_finer = exact is not None or self._body.settings.precision != "fp32"
        exact = exact or self._in_single(before, window)
        loose = RoundingNoise(real, again, exact, self._nudged(before, window))
        return self._judged(real, candidate, exact, loose, is_finer=is_finer)

    def _difference_in_bits(self, after: Snapshot, eager: Gradients) -> str | None:
        difference = after.first_difference(Snapshot(self._body), updated=self._updates)
        candidate = copy_gradients(self._body)
        if difference is None and not self._updates and not same_gradients(eager, candidate):
            return _words(relative_difference(eager, candidate))
        return difference

    def _judged(
        self,
        real: WindowResult,
        candidate: WindowResult,
        exact: WindowResult,
        loose: RoundingNoise,
        *,
        is_finer: bool,
    ) -> str | None:
        """Say what speaks against a candidate by how far it and eager are from exact numbers."""
        off, mine, theirs = real.distance(candidate), exact.distance(candidate), exact.distance(real)
        doubt = ""
        # Asked so that what is not a number never passes.
        if not off <= self._tolerance:
            if mine <= EAGER_ERROR_FACTOR * loose.total:
                self._rounding = f"gradients {mine:.1g} from exact ones, eager's {theirs:.1g}"
            else:
                doubt = _told(off, mine, theirs, self._tolerance)
                if not mine <= DOUBTFUL * max(loose.total, TOLERANCE["fp32"]):
                    return doubt
        ours = part_distances(exact.parts, candidate.parts)
        for name, apart in real.outliers(candidate).items():
            part, told = real.parts[name], f"{name} is off by {apart:.2g} of its size"
            limit = part.limit
            if not is_finer:
                # What is only rounding is not known then.
                limit = min(MOSTLY_ROUNDING, DOUBTFUL * limit)
            is_rounding = part.may_be_rounding and loose.eager_error(name) >= MOSTLY_ROUNDING
            enough = MOST_ROUNDING if is_rounding else limit
            if ours.get(name, apart) <= max(EAGER_ERROR_FACTOR * loose.of(name), enough):
                continue
            if not ours.get(name, apart) <= DOUBTFUL * max(loose.of(name), limit):
                return told
            doubt = doubt or told
        if doubt and self._doubtful >= MOST_DOUBTFUL:
            return doubt
        self._doubtful += bool(doubt)
        return None

    def _repeats_itself(self, before: Snapshot, window: list[Micro]) -> bool:
        """Say whether eager gives the same bits twice.

        Some kernels (cuDNN's, under autotuning) add in an order that changes from run to run.
        """
        candidate = copy_gradients(self._body)
        ends, grads = [], []
        for _ in range(2):
            grads.append(self._run(self._eager, before, window).shown.gradients)
            ends.append(Snapshot(self._body))
        set_gradients(self._body, candidate)
        self._repeats = ends[0].first_difference(ends[1]) is None and same_gradients(*grads)
        return self._repeats

    def _nudged(self, before: Snapshot, window: list[Micro]) -> Iterator[WindowResult]:
        """Run the window from weights that moved by their last bit, a few times; each holds all gradients."""
        for seed in range(PERTURBATIONS):
            try:
                with self._leaving_no_trace(before, window):
                    perturb(self._body, seed)
                    yield self._again(self._eager, window, before)
            except Exception as error:
                log.debug("no numbers from moved weights: %s: %s", type(error).__name__, error)

    def _in_single(self, before: Snapshot, window: list[Micro]) -> WindowResult:
        """Run the window in full float32."""
        body = copy.copy(self._body)
        body.settings = replace(body.settings, precision="fp32")
        exactly = full_float32() if body.device.type == "cuda" else nullcontext()
        with self._leaving_no_trace(before, window), exactly:
            return self._run(EagerRunner(body), before, window)

    def _in_double(
        self, real: WindowResult, before: Snapshot, after: Snapshot, window: list[Micro]
    ) -> WindowResult | None:
        """Run a window of float32 in float64; None where the step cannot do that, or draws other numbers.

        For ResNet-20 and batches of 8, eager's gradients in float32 were up to 0.007 from those.
        """
        settings = self._body.settings
        clips = (settings.clip_norm, settings.clip_value) != (None, None)
        if settings.precision != "fp32" or (self._updates and clips):
            return None  # what is compared was clipped in the update, which float64 has no state for
        if has_live_history(self._body.parameters):
            return None  # somebody listens for gradients where another dtype makes them come by anew
        drew = before.drew_random_numbers(after)
        if drew and self._body.device.type == "cuda":
            return None  # how far a generator went does not tell there what was drawn
        body = copy.copy(self._body)
        # Recordings write to what the others keep.
        body.keep_statistics_apart()
        try:
            with self._leaving_no_trace(before, window), in_float64(body, window) as widened:
                found = self._again(EagerRunner(body), widened, before, updates=False)
                draws_alike = not drew or after.cpu_rng_unchanged()
        except Exception as error:
            log.debug("no numbers in float64: %s: %s", type(error).__name__, error)
            return None
        return found if draws_alike and found.distance(real) <= MAX_FLOAT64_DISTANCE else None

    @contextmanager
    def _leaving_no_trace(self, before: Snapshot, window: list[Micro]) -> Iterator[None]:
        """Put back what only this run changes: the snapshots know what the real one did."""
        body = self._body
        before.restore()
        kept = Snapshot(body, [micro.batch for micro in window], body.written)
        try:
            yield
        finally:
            kept.reachable.restore()

    def _run(self, runner: EagerRunner, before: Snapshot, window: list[Micro]) -> WindowResult:
        """Let a runner run the window once more."""
        before.restore()
        return self._again(runner, window, before)

    def _again(
        self, runner: EagerRunner, window: list[Micro], before: Snapshot, *, updates: bool | None = None
    ) -> WindowResult:
        values = rerun(runner, window, updates=self._updates if updates is None else updates)
        return self._end_now(values, before)

    def _end_now(self, values: Values, before: Snapshot) -> WindowResult:
        return self._end(WindowOutputs(copy_gradients(self._body), values), live_state(self._body), before)

    def _end(self, shown: WindowOutputs, after: Mapping[str, Tensor], before: Snapshot) -> WindowResult:
        return WindowResult(
            shown, window_parts(self._body, shown.gradients, after, before.kept, shown.values)
        )


def _told(off: float, mine: float, theirs: float, tolerance: float) -> str:
    # Where eager is as exact as can be, there is no more to tell.
    if theirs < tolerance / 10:
        return _words(off)
    return f"{_words(off)} from eager's; from exact ones by {mine:.2g}, eager's by {theirs:.2g}"


def _words(off: float) -> str:
    return f"the gradients are off by {off:.2g} of their norm"


def rerun(runner: Runner, window: Iterable[Micro], *, updates: bool) -> Values:
    """Run for comparison what was run; gives what the last micro-batch named."""
    values: Values = {}
    for micro in window:
        values = (runner.run(micro) if updates else runner.run_without_update(micro)).values
    return values


def set_gradients(body: StepBody, grads: Gradients) -> None:
    """Put gradients where the update looks for them."""
    for parameter, grad in zip(body.parameters, grads):
        parameter.grad = grad

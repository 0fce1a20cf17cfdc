"""Decides whether a candidate may replace eager, from windows that both have run."""

from __future__ import annotations

from ..capture.runner import Runner
from ..program.program import StepBody
from ..program.runner import EagerRunner, Micro
from ..settings import Tier
from ..state.snapshot import Snapshot
from .candidate import CandidateBuilder
from .direction import Directions
from .distances import (
    MOSTLY_ROUNDING,
    RoundingNoise,
    Values,
    WindowOutputs,
    WindowResult,
)
from .gradients import (
    EAGER_ERROR_FACTOR,
    TOLERANCE,
    Gradients,
    copy_gradients,
    relative_difference,
    same_gradients,
)
from .parts import parameter_names, part_distances
from .reruns import Reruns, set_gradients

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
# How far weights are moved, relative to their size, if all gradients of a window may be rounding errors.
OTHER_WEIGHTS = (0.01, 0.3)


class Verdict:
    """What is known about one candidate so far; `updates` if the candidate includes the update."""

    def __init__(
        self, tier: Tier, body: StepBody, *, updates: bool, builder: CandidateBuilder | None = None
    ) -> None:
        self._tier = tier
        # Drops recordings while eager runs, and makes them again.
        self._builder = builder
        self._body = body
        self._tolerance = TOLERANCE[body.settings.precision]
        self._updates = updates
        self._eager = EagerRunner(body)
        self._reruns = Reruns(body, updates=updates)
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
            equal = self._rounding or f"gradients {self._closeness}"
        if not self._repeats:
            equal += ", which does not repeat itself bit for bit here"
        of_all = f" of {self._passed + self._doubtful}" if self._doubtful else ""
        return f"{equal} over {self._passed}{of_all} updates"

    @property
    def _closeness(self) -> str:
        return f"within {self._tolerance:g} of eager's"

    def judge(
        self,
        candidate: Runner,
        after: Snapshot,
        real: WindowOutputs,
        values: Values,
        before: Snapshot,
        window: list[Micro],
    ) -> str | None:
        """Compare the present state, the candidate's result of a window, with eager's.

        `values` are the candidate's named values. Return how it differs, or None if it passes or is doubtful.
        """
        doubtful = self._doubtful
        difference = self._difference(candidate, after, real, values, before, window)
        if difference is None and self._doubtful == doubtful:
            self._passed += 1
        return difference

    def _difference(
        self,
        runner: Runner,
        after: Snapshot,
        eager: WindowOutputs,
        values: Values,
        before: Snapshot,
        window: list[Micro],
    ) -> str | None:
        if self._tier == "captured" and not (difference := self._difference_in_bits(after, eager.gradients)):
            return None
        candidate, real = (
            self._reruns.result_now(values, before),
            self._reruns.result(eager, after.tensors, before),
        )
        if self._tier == "captured" and self._repeats_itself(before, window):
            return difference
        off, strays = real.distance(candidate), real.outliers(candidate)
        if off <= self._tolerance and not strays:
            # Gradients of zero are also those of a candidate that computes none.
            if any(grad is not None and bool(grad.any()) for grad in eager.gradients):
                return None
            return None if self._agrees_elsewhere(runner, before, window) else _norm_error(1.0)
        self._make_room()
        again = self._reruns.run(self._eager, before, window)
        failure = _rerun_error(off, real.distance(again), self._tolerance)
        exact = None if failure else self._reruns.in_float64(real, before, after, window)
        is_finer = exact is not None or self._body.settings.precision != "fp32"
        exact = exact or self._reruns.in_float32(before, window)
        noise = RoundingNoise(real, again, exact, self._reruns.perturbed(before, window))
        failure = failure or self._failure(real, candidate, exact, noise, is_finer=is_finer)
        # Gradients that are mostly rounding say nothing: those of a candidate without any are as close.
        is_proof = noise.total < MOSTLY_ROUNDING or off <= self._tolerance
        if failure is None and is_proof:
            return None
        if failure is None:
            failure = self._difference_in_direction(real, candidate, exact, off, is_finer=is_finer)
            if failure is None:
                return None
        elif not noise.may_explain(real, candidate):
            return failure
        if self._agrees_elsewhere(runner, before, window):
            self._rounding = f"gradients that are rounding errors; {self._closeness} at other weights"
            return None
        return failure

    def _agrees_elsewhere(self, runner: Runner, before: Snapshot, window: list[Micro]) -> bool:
        """Return whether a candidate agrees with eager at other weights.

        A model that has memorized its batch computes nothing but rounding errors at its own.
        """
        for by in OTHER_WEIGHTS:
            self._make_room()
            real = self._reruns.moved(self._eager, by, before, window)
            if self._builder is not None:
                before.restore()
                self._builder.prepare(window, before)
            candidate = self._reruns.moved(runner, by, before, window)
            if real.distance(candidate) <= self._tolerance and not real.outliers(candidate):
                return True
        return False

    def _difference_in_bits(self, after: Snapshot, eager: Gradients) -> str | None:
        difference = after.first_difference_now(self._body, updated=self._updates)
        candidate = copy_gradients(self._body)
        if difference is None and not self._updates and not same_gradients(eager, candidate):
            return _norm_error(relative_difference(eager, candidate, self._body.device))
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

    def _difference_in_direction(
        self,
        real: WindowResult,
        candidate: WindowResult,
        exact: WindowResult,
        off: float,
        *,
        is_finer: bool,
    ) -> str | None:
        """Compare the direction of gradients that are mostly rounding errors with that of exact ones."""
        gradients = (result.outputs.gradients for result in (exact, real, candidate))
        found = Directions(*gradients, device=self._body.device)
        if not is_finer or not found.of_all.is_known or not found.of_all.may_be_kept:
            return _norm_error(off)
        if lost := found.lost():
            return f"the gradient of {parameter_names(self._body)[lost[0]]} points in another direction"
        if not found.of_all.is_kept:
            if self._doubtful >= MAX_DOUBTFUL:
                return _norm_error(off)
            self._doubtful += 1
            return None
        ours, theirs = found.of_all.candidate, found.of_all.eager
        self._rounding = (
            "gradients that are mostly rounding errors, as eager's are, in the same direction "
            f"(cosine with exact ones {ours:.2g}, eager's {theirs:.2g})"
        )
        return None

    def _make_room(self) -> None:
        """Drop the recordings before eager runs, where the trial can make them again."""
        if self._builder is not None:
            self._builder.make_room()

    def _repeats_itself(self, before: Snapshot, window: list[Micro]) -> bool:
        """Return whether eager computes the same bits twice.

        Some kernels (cuDNN's, with autotuning) add in an order that changes from run to run.
        """
        candidate = copy_gradients(self._body)
        self._make_room()
        first = self._reruns.run(self._eager, before, window).outputs.gradients
        state = Snapshot(self._body)
        again = self._reruns.run(self._eager, before, window).outputs.gradients
        self._repeats = state.first_difference_now(self._body) is None and same_gradients(first, again)
        set_gradients(self._body, candidate)
        return self._repeats


def _rerun_error(off: float, apart: float, tolerance: float) -> str | None:
    """Return an error if eager itself is too far from its first run when it runs again."""
    if not apart > max(MAX_RERUN_DISTANCE, 2 * tolerance):
        return None
    return (
        f"{_norm_error(off)}, and eager's own by {apart:.2g} when it runs again: state that the step keeps "
        "outside of parameters, buffers and plain attributes of modules cannot be restored"
    )


def _exact_error(off: float, mine: float, theirs: float, tolerance: float) -> str:
    # If eager is exact, its error is not worth a mention.
    if theirs < tolerance / 10:
        return _norm_error(off)
    return f"{_norm_error(off)} from eager's; from exact ones by {mine:.2g}, eager's by {theirs:.2g}"


def _norm_error(off: float) -> str:
    return f"the gradients are off by {off:.2g} of their norm"

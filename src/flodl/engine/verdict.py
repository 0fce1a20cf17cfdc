"""Whether a candidate may stand in for eager, by the windows that both have run."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace

from flodl.core import log

from .body import StepBody
from .comparison import (
    AS_FAR_AS_EAGER,
    TOLERANCE,
    Gradients,
    exact_products,
    gradients,
    relative_difference,
    same_gradients,
)
from .exact import in_double
from .recorded import Runner
from .runners import EagerRunner, Micro
from .settings import Tier
from .snapshot import Snapshot

VERIFIED_WINDOWS = 2
# How far eager's gradients may be from those of the same window run again, by kernels that add in any order.
EAGER_AGAIN = 0.01
# Up to so many times as far from exact gradients as eager, a window may have been an unlucky one: where
# rounding is loose, one in many is. Then more than half of five have to be as close as they should.
# Float32 knows such windows, too, where the last bit decides on which side of a ReLU many values fall.
DOUBTFUL = 5.0
DOUBTED_WINDOWS = 3
MOST_DOUBTFUL = 2


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
    def is_good(self) -> bool:
        """Whether enough windows have passed."""
        return self._passed >= (DOUBTED_WINDOWS if self._doubtful else VERIFIED_WINDOWS)

    @property
    def words(self) -> str:
        """How close the candidate is to eager, and over how many updates that was seen."""
        equal = "equal to eager bit for bit"
        if self._tier == "compiled" or not self._repeats:
            equal = self._rounding or f"gradients within {self._tolerance:g} of eager's"
        if not self._repeats:
            equal += ", which does not repeat itself bit for bit here"
        of_all = f" of {self._passed + self._doubtful}" if self._doubtful else ""
        return f"{equal} over {self._passed}{of_all} updates"

    def against(self, after: Snapshot, eager: Gradients, before: Snapshot, window: list[Micro]) -> str | None:
        """Say what the candidate's end of the window has against it; None where nothing has, or not yet."""
        doubtful = self._doubtful
        difference = self._difference(after, eager, before, window)
        if difference is None and self._doubtful == doubtful:
            self._passed += 1
        return difference

    def _difference(
        self, after: Snapshot, eager: Gradients, before: Snapshot, window: list[Micro]
    ) -> str | None:
        candidate = gradients(self._body)
        if self._tier == "captured":
            difference = after.first_difference(Snapshot(self._body), updated=self._updates)
            if difference is None and not self._updates and not same_gradients(eager, candidate):
                difference = _words(relative_difference(eager, candidate))
            if difference is None or self._repeats_itself(before, window):
                return difference
        off = relative_difference(eager, candidate)
        if off <= self._tolerance:
            return None
        again = relative_difference(eager, self._gradients_of(self._eager, before, window))
        if again > max(EAGER_AGAIN, 2 * self._tolerance):
            return (
                f"{_words(off)}, and eager's by {again:.2g} from its own when it runs again: what the step "
                "keeps other than in parameters, buffers and plain attributes of modules cannot be put back"
            )
        exact = self._exact_gradients(eager, before, window)
        mine, theirs = relative_difference(exact, candidate), relative_difference(exact, eager)
        if mine <= AS_FAR_AS_EAGER * theirs:
            self._rounding = f"gradients {mine:.1g} from exact ones, eager's {theirs:.1g}"
            return None
        if mine <= DOUBTFUL * max(theirs, TOLERANCE["fp32"]) and self._doubtful < MOST_DOUBTFUL:
            self._doubtful += 1
            return None
        # Where eager is as exact as can be, there is no more to tell.
        if theirs < self._tolerance / 10:
            return _words(off)
        return f"{_words(off)} from eager's; from exact ones by {mine:.2g}, eager's by {theirs:.2g}"

    def _repeats_itself(self, before: Snapshot, window: list[Micro]) -> bool:
        """Say whether eager gives the same bits twice.

        Some kernels (cuDNN's, under autotuning) add in an order that changes from run to run.
        """
        candidate = gradients(self._body)
        ends, grads = [], []
        for _ in range(2):
            grads.append(self._gradients_of(self._eager, before, window))
            ends.append(Snapshot(self._body))
        put_gradients(self._body, candidate)
        self._repeats = ends[0].first_difference(ends[1]) is None and same_gradients(*grads)
        return self._repeats

    def _exact_gradients(self, eager: Gradients, before: Snapshot, window: list[Micro]) -> Gradients:
        """Give the gradients of the window with the next higher precision: full float32, or float64."""
        body = copy.copy(self._body)
        if body.settings.precision == "fp32" and (doubled := self._in_double(eager, before, window)):
            return doubled
        body.settings = replace(body.settings, precision="fp32")
        with exact_products() if body.device.type == "cuda" else nullcontext():
            return self._gradients_of(EagerRunner(body), before, window)

    def _in_double(self, eager: Gradients, before: Snapshot, window: list[Micro]) -> Gradients | None:
        """Give the gradients in float64; None where the step cannot do that, or draws other numbers then.

        For ResNet-20 and batches of 8, eager's gradients in float32 were up to 0.003 from those.
        """
        body = copy.copy(self._body)
        if self._updates and (body.settings.clip_norm, body.settings.clip_value) != (None, None):
            return None  # what is compared was clipped in the update, which float64 has no state for
        before.restore()
        try:
            with in_double(body, window) as widened:
                for micro in widened:
                    run_again(EagerRunner(body), micro, updates=False)
                found = gradients(body)
        except Exception as error:
            log.debug("no gradients in float64: %s: %s", type(error).__name__, error)
            return None
        return found if relative_difference(found, eager) <= EAGER_AGAIN else None

    def _gradients_of(self, runner: EagerRunner, before: Snapshot, window: list[Micro]) -> Gradients:
        """Give the gradients that a runner comes to when it runs the window once more."""
        before.restore()
        for micro in window:
            run_again(runner, micro, updates=self._updates)
        return gradients(self._body)


def _words(off: float) -> str:
    return f"the gradients are off by {off:.2g} of their norm"


def run_again(runner: Runner, micro: Micro, *, updates: bool) -> None:
    """Run for comparison what was run."""
    if updates:
        runner.run(micro)
    else:
        runner.run_without_update(micro)


def put_gradients(body: StepBody, grads: Gradients) -> None:
    """Put gradients where the update looks for them."""
    for parameter, grad in zip(body.parameters, grads):
        parameter.grad = grad

"""Compares a batch with its pieces: a mean over samples is their mean, a sum or a count is their sum."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flodl.core import log
from flodl.core.metric_modes import words_of
from flodl.engine import TrainStep, num_samples, pieces_of, sandbox

from .evaluator import Evaluator, as_arguments

# Words that say that a value is a count.
COUNTS = re.compile(r"correct|correctly|count|counts|errors|fn|fp|hit|hits|matches|num|right|tn|tp|wrong")
# The loss of a sample differs by its rounding if it is computed in a smaller batch; GPUs may use TF32.
TOLERANCES = {"cpu": 1e-4, "cuda": 1e-3, "half precision": 3e-2}

Values = Mapping[str, float]


@dataclass(frozen=True)
class Pieces:
    """The loss and the named values of a batch and of its pieces, which have these shares of its samples."""

    whole: Values
    pieces: Sequence[Values]
    shares: Sequence[float]
    tolerance: float = TOLERANCES["cpu"]

    def is_mean(self, name: str) -> bool:
        """Return whether a value is the mean of those of the pieces, weighted by samples.

        >>> Pieces({"loss": 3.0}, [{"loss": 2.0}, {"loss": 4.0}], [0.5, 0.5]).is_mean("loss")
        True
        """
        return self._is_close(name, sum(one[name] * share for one, share in zip(self.pieces, self.shares)))

    def is_flat(self, name: str) -> bool:
        """Return whether the values of the pieces are so similar that other functions nearly give their mean.

        >>> pieces = [{"ppl": 65.0}, {"ppl": 65.3}]
        >>> Pieces({"ppl": 65.15}, pieces, [0.5, 0.5]).is_flat("ppl")
        True
        """
        values = [one[name] for one in (self.whole, *self.pieces)]
        spread = max(values) - min(values)
        return spread * spread <= 8 * self.tolerance * max(map(abs, values)) ** 2

    def is_exp_of_loss(self, name: str) -> bool:
        """Return whether a value is the exponential of the mean loss, as a perplexity is.

        >>> Pieces({"ppl": math.e, "loss": 1.0}, [], []).is_exp_of_loss("ppl")
        True
        """
        loss = self.whole.get("loss", math.inf)
        return loss < 100.0 and math.isclose(self.whole[name], math.exp(loss), rel_tol=1e-5)

    def is_sum(self, name: str) -> bool:
        """Return whether a value is the sum of those of the pieces, and not their mean.

        >>> Pieces({"loss": 6.0}, [{"loss": 2.0}, {"loss": 4.0}], [0.5, 0.5]).is_sum("loss")
        True
        """
        return not self.is_mean(name) and self._is_close(name, sum(one[name] for one in self.pieces))

    def _is_close(self, name: str, expected: float) -> bool:
        # Positive and negative losses may cancel, so the largest is the scale.
        scale = max(abs(one[name]) for one in (self.whole, *self.pieces))
        return abs(self.whole[name] - expected) <= self.tolerance * scale


def compare_pieces(
    step: TrainStep, evaluator: Evaluator, batch: Any, names: Collection[str]
) -> Pieces | None:
    """Evaluate a batch and its pieces, and restore everything; None if they cannot be compared.

    They cannot if the batch cannot be split, if the values depend on random numbers or on earlier batches, or
    if something fails: the step, which comes next, raises that error itself.
    """
    arguments = as_arguments(batch)
    parts = pieces_of(arguments)
    if parts is None:
        return None
    evaluator = replace(evaluator, metrics={}, outputs=None, average=None, tables={})
    try:
        with sandbox(step, batch):
            found = [evaluator.values_of(one) for one in (arguments, *parts, arguments)]
    except Exception as error:
        log.debug("the pieces of a batch are not compared: %s: %s", type(error).__name__, error)
        return None
    found = [{name: one[name] for name in names if name in one} for one in found]
    whole, *pieces, again = found
    if whole != again or any(one.keys() != whole.keys() for one in pieces):
        return None
    if not all(math.isfinite(value) for one in found for value in one.values()):
        return None
    total = num_samples(arguments)
    return Pieces(whole, pieces, [num_samples(one) / total for one in parts], _tolerance(evaluator))


def _tolerance(evaluator: Evaluator) -> float:
    parameters = evaluator.model.parameters()
    if evaluator.precision != "fp32" or any(one.dtype.itemsize < 4 for one in parameters):
        return TOLERANCES["half precision"]
    return TOLERANCES["cpu" if evaluator.device.type == "cpu" else "cuda"]


def warn_of_counts(found: Pieces) -> str:
    """Return a warning about values that are counts over a batch, or "".

    >>> warn_of_counts(Pieces({"correct": 3.0}, [{"correct": 1.0}, {"correct": 2.0}], [0.5, 0.5]))
    ... # doctest: +ELLIPSIS
    "the step function returns 'correct', a count over the batch, and the history has the mean of a value ...
    """
    return warning_of([name for name in found.whole if found.is_sum(name)])


def warning_of(counts: Sequence[str]) -> str:
    """Return the warning about these counts, or "" if there are none."""
    if not counts:
        return ""
    otherwise = ""
    if not any(map(is_accuracy, counts)):
        otherwise = ", or convert it with value.float() if you want the mean of the counts"
    return (
        f"the step function returns {' and '.join(map(repr, counts))}, "
        f"{'counts' if len(counts) > 1 else 'a count'} over the batch, and the history has the mean of a "
        "value over batches, weighted by samples, which depends on the batch size. Return a rate, such as "
        f"(predictions == y).float().mean(){otherwise}."
    )


def is_accuracy(name: str) -> bool:
    """Return whether a value is an accuracy by its name, which a count is not, whatever its dtype.

    >>> [is_accuracy(name) for name in ("acc", "top5_accuracy", "correct", "accuracy_count", "accel")]
    [True, True, False, False, False]
    """
    words = words_of(name)
    return not words.isdisjoint({"acc", "accuracy"}) and not any(map(COUNTS.fullmatch, words))

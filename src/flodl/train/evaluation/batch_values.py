"""Named values of the step function whose mean over batches depends on the batch size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flodl.core import log
from flodl.core.metric_modes import words_of
from flodl.core.pooled_metrics import Pooling, is_perplexity, pooling_of
from flodl.engine import TrainStep, sandbox

from .evaluator import Evaluator
from .loss_text import mentions_sum
from .pieces import COUNTS, compare_pieces, is_accuracy, warn_of_counts, warning_of


@dataclass(frozen=True)
class BatchValues:
    """A warning about counts, a note about metrics that pool samples, and integers that may be counts."""

    warning: str = ""
    note: str = ""
    undecided: tuple[str, ...] = ()


def judge_values(
    step: TrainStep, evaluator: Evaluator, batch: Any, values: Mapping[str, Tensor] | None = None
) -> BatchValues:
    """Compare the values of a batch with those of its pieces; without `values`, a forward pass finds them."""
    if values is None:
        values = _values_of(step, evaluator, batch)
    integers = [name for name, value in values.items() if _is_integer(value)]
    too_high = [name for name, value in values.items() if is_accuracy(name) and _may_be_count(value)]
    warning, undecided = "", list[str]()
    if integers or too_high:
        found = compare_pieces(step, evaluator, batch, [*integers, *too_high])
        warning = "" if found is None else warn_of_counts(found)
        undecided = [name for name in integers if found is None or not found.whole.get(name)]
    pooled = {name: how for name in values if (how := pooling_of(name)) is not Pooling.NEVER}
    note = _note(step, evaluator, batch, pooled) if pooled else ""
    note = note or _note_of_float_counts(step, evaluator, batch, values)
    note = note or _note_of_sum(step, evaluator, batch)
    return BatchValues(warning, note, tuple(undecided))


def counts_in(means: Mapping[str, float], undecided: tuple[str, ...]) -> str:
    """Return a warning about integers that are counts, judging by name and mean, or "".

    They were 0 in the first batch, or it has no pieces to compare.

    >>> counts_in({"correct": 3.5, "length": 3.5}, ("correct", "length"))[:45]
    "the step function returns 'correct', a count "
    """

    def is_count(name: str) -> bool:
        return is_accuracy(name) or any(map(COUNTS.fullmatch, words_of(name)))

    return warning_of([name for name in undecided if means.get(name, 0.0) > 1.0 and is_count(name)])


def _values_of(step: TrainStep, evaluator: Evaluator, batch: Any) -> dict[str, Tensor]:
    try:
        with sandbox(step, batch):
            return evaluator.named_values_of(batch)
    except Exception as error:
        log.debug("the values of a batch are not judged: %s: %s", type(error).__name__, error)
        return {}


def _is_integer(value: Tensor) -> bool:
    return not value.is_floating_point() and value.dtype is not torch.bool


def _may_be_count(value: Tensor) -> bool:
    """Return whether a float is a whole number above 1; a percentage may be one, too."""
    number = float(value.detach()) if value.is_floating_point() and value.numel() == 1 else 0.0
    return number > 1.0 and number.is_integer()


def _note_of_float_counts(
    step: TrainStep, evaluator: Evaluator, batch: Any, values: Mapping[str, Tensor]
) -> str:
    """Return a note about floats that are counts by their name and their sum, or ""."""
    named = [
        name
        for name, value in values.items()
        if _may_be_count(value) and any(map(COUNTS.fullmatch, words_of(name)))
    ]
    found = compare_pieces(step, evaluator, batch, named) if named else None
    counts = [] if found is None else [name for name in found.whole if found.is_sum(name)]
    if not counts:
        return ""
    are = "is a count" if len(counts) == 1 else "are counts"
    return (
        f"{' and '.join(map(repr, counts))} of the step function {are} over the batch, and the history has "
        "the mean over batches, weighted by samples, which depends on the batch size. Return a rate, such as "
        "(predictions == y).float().mean()"
    )


def _note_of_sum(step: TrainStep, evaluator: Evaluator, batch: Any) -> str:
    """Return a note about a loss that is a sum over samples, or "".

    Only losses whose code mentions a sum are checked, because the check takes a few forward passes.
    """
    if not mentions_sum(evaluator.step_fn):
        return ""
    found = compare_pieces(step, evaluator, batch, ["loss"])
    if found is None or not found.is_sum("loss"):
        return ""
    return (
        "the loss is a sum over the samples of a batch. The history records the mean over batches, weighted "
        "by their number of samples. This mean and the gradients both depend on the batch size. Divide the "
        "loss by the number of samples, or use reduction='mean'"
    )


def _note(step: TrainStep, evaluator: Evaluator, batch: Any, pooled: Mapping[str, Pooling]) -> str:
    """Return a note about values that are not means over samples, or ""."""
    names = []
    for name, how in pooled.items():
        found = compare_pieces(step, evaluator, batch, [name, "loss"])
        if found is None or name not in found.whole:
            is_pooled = how is Pooling.ALWAYS
        elif found.is_mean(name) and how is Pooling.ALWAYS and found.is_flat(name):
            # Before training, batches may be too similar to tell: the outputs of a model are nearly uniform.
            is_pooled = found.is_exp_of_loss(name) or not is_perplexity(name)
        else:
            is_pooled = not found.is_mean(name)
        if is_pooled:
            names.append(name)
    if not names:
        return ""
    is_one = len(names) == 1
    return (
        f"{' and '.join(map(repr, names))} of the step function {'is' if is_one else 'are'} reported as the "
        f"mean over batches, which depends on the batch size. For the value over all evaluation data, use a "
        f"metric object instead: metrics={{{names[0]!r}: …}}"
    )

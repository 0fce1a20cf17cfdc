"""A named value of the step function whose mean is NaN while the training loss is a number."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from ..evaluation.names import SKIPPED

_OTHERS = ("epoch", "loss", "lr", SKIPPED)


def nan_values(row: Mapping[str, Any], ranks: Mapping[str, Collection[int]]) -> str | None:
    """Return what to report about the means of an epoch, or None; `ranks` are those that had NaN, by name.

    >>> nan_values({"epoch": 2, "loss": 0.5, "gap": math.nan}, {"gap": {1}})
    "the mean of 'gap' is NaN in epoch 2, because of rank 1, and the training loss is 0.5. A single NaN ..."
    >>> nan_values({"epoch": 2, "loss": math.nan, "gap": math.nan}, {})
    """
    names = [name for name, value in row.items() if name not in _OTHERS and math.isnan(value)]
    if not names or not math.isfinite(row["loss"]):
        return None
    named = " and ".join(map(repr, names))
    found = sorted({rank for name in names for rank in ranks.get(name, ())})
    because = f", because of {_listed(found)}," if found else ""
    return (
        f"the mean of {named} is NaN in epoch {row['epoch']}{because} and the training loss is "
        f"{row['loss']:.4g}. A single NaN in a batch is enough. Look for a mean over zero elements and for "
        "0 / 0 in the step function."
    )


def _listed(ranks: Collection[int]) -> str:
    numbers = [str(rank) for rank in ranks]
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(numbers)}"

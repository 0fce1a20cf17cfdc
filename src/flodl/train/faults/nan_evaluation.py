"""An evaluation whose loss is NaN while the training loss is a number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_LOSSES = ("eval_loss", "eval_ema_loss")


def nan_evaluation(row: Mapping[str, Any]) -> str | None:
    """Return what to report about the row of an epoch, or None.

    >>> nan_evaluation({"epoch": 2, "loss": 0.5, "eval_loss": math.nan})
    'eval_loss is NaN in epoch 2, and the training loss is 0.5. Look for NaN in the evaluation data ...'
    >>> nan_evaluation({"epoch": 2, "loss": math.nan, "eval_loss": math.nan})
    """
    name = next((name for name in _LOSSES if math.isnan(row.get(name, 0.0))), None)
    if name is None or not math.isfinite(row["loss"]):
        return None
    return (
        f"{name} is NaN in epoch {row['epoch']}, and the training loss is {row['loss']:.4g}. Look for NaN in "
        "the evaluation data (x.isnan().any()) and for a mean over zero elements, such as an empty mask."
    )

"""What is shown of an update besides its loss: named values, the learning rate and the gradient norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .learning_rate import known_rates
from .session import Session


def step_metrics(session: Session) -> dict[str, Any]:
    """Return the metrics of the last update; those on a device are not read.

    The rate is that of the next update, as in a row of the history. The norm, from before clipping, is known
    if `clip_norm` is set and, with accumulation, once the first window is full.
    """
    step = session.train_step
    bridge = step.schedule
    if bridge is None:
        rates = known_rates(session.optimizer)
    else:
        rates = [bridge.lr * max(bridge.ratios)]
    found: dict[str, Any] = {"lr": _highest(rates)} if rates else {}
    if step.settings.clip_norm is not None and step.has_updated:
        found["grad_norm"] = step.grad_norm
    return found | step.values


def _highest(rates: Sequence[float | Tensor]) -> float | Tensor:
    """Return the highest rate; if they are tensors, without reading them.

    >>> _highest([0.1, 0.2]), _highest([torch.tensor(0.5), torch.tensor(0.25)])
    (0.2, tensor(0.5000))
    """
    tensors = [rate for rate in rates if isinstance(rate, Tensor)]
    if not tensors:
        return max(rates)
    return tensors[0] if len(tensors) < len(rates) else torch.stack([*tensors]).max()

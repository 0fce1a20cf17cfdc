"""What is shown of an update besides its loss: named values, the learning rate and the gradient norm."""

from __future__ import annotations

from typing import Any

from .session import Session


def step_metrics(session: Session) -> dict[str, Any]:
    """Return the metrics of the last update; those on a device are not read.

    The rate is that of the next update, as in a row of the history. The norm, from before clipping, is known
    if `clip_norm` is set.
    """
    step = session.train_step
    bridge = step.schedule
    rate = session.optimizer.param_groups[0]["lr"] if bridge is None else bridge.lr * bridge.ratios[0]
    found = {"lr": rate}
    if step.settings.clip_norm is not None:
        found["grad_norm"] = step.grad_norm
    return found | step.values

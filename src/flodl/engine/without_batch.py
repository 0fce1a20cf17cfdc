"""An update on a rank that has no batch for it, while other ranks have one."""

from __future__ import annotations

from flodl.core import StepError
from flodl.core.interrupts import uninterrupted

from .program.progress import Stage
from .program.runner import update_strictly
from .step import TrainStep


def update_without_batch(step: TrainStep) -> None:
    """Make the same update as the other ranks without contributing to it; apply a window that is half full.

    All ranks have to make the same number of updates. A rank whose data ends earlier calls this instead of
    the step, until the others have finished.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> step = TrainStep(
    ...     model,
    ...     torch.optim.SGD(model.parameters(), lr=0.1),
    ...     lambda m, x: m(x).square().mean(),
    ...     reduce_gradients=lambda gradients, weight: None,
    ... )
    >>> step(torch.ones(4, 2)).shape, update_without_batch(step), step.updates, step.steps
    (torch.Size([]), None, 2, 1)
    """
    body = step._body
    if body.reduction is None:
        raise StepError(
            "update_without_batch was called on a step without reduce_gradients: there are no other ranks "
            "whose gradients it could apply. Call the step with a batch."
        )
    if not step.is_between_updates:
        step.flush()
        return
    if step._bridge is not None:
        step._bridge.add_new_groups()
    body.progress.stage = Stage.FORWARD
    body.updater.refresh()
    body.start_window()
    try:
        update_strictly(body, 1.0, 0)
    except BaseException:
        step.give_up_window()
        raise
    with uninterrupted():
        step._count_update()
        step._move_schedule()

"""The forward pass of a step on its own: nothing is updated, and everything it changes can be restored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .batch.samples import num_samples
from .program.outcome import outcome_of
from .program.precision import computing_in
from .state.sandbox import restored_afterwards
from .step import TrainStep


@contextmanager
def sandbox(step: TrainStep, *reached: Any) -> Iterator[None]:
    """Restore everything that the block changes in the model or in what the step function reaches.

    That includes buffers, attributes, closures, globals, generators and the global random state; `reached`
    are further objects, such as a batch. Raise NotRestorable, before the block runs, if the step may change
    something that cannot be restored.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    >>> step = TrainStep(
    ...     model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x: m(x).square().mean()
    ... )
    >>> with sandbox(step):
    ...     loss, values = rehearse(step, (torch.ones(3, 2),))
    >>> loss.shape, step.steps, model[1].num_batches_tracked.item()
    (torch.Size([]), 0, 0)
    """
    body = step._body
    groups = body.optimizer.param_groups
    settings = [{name: value for name, value in group.items() if name != "params"} for group in groups]
    reachable = body.step_fn, *reached, [[*one.values()] for one in settings]
    with restored_afterwards(body.model, reachable, exclude=(body.optimizer,)):
        try:
            yield
        finally:
            for group, saved in zip(groups, settings):
                group.update(saved)


def rehearse(step: TrainStep, batch: tuple[Any, ...]) -> tuple[Tensor, dict[str, Tensor]]:
    """Run only the forward pass of a step, eagerly; return its loss and its named values.

    Use it inside `sandbox`. The loss has its autograd history.
    """
    body, extra = step._body, {}
    if body.settings.tail == "pad":
        extra["mask"] = torch.ones(num_samples(batch), dtype=torch.bool, device=body.device)
    with torch.enable_grad(), computing_in(body.settings.precision, body.device):
        outcome = outcome_of(body.step_fn(body.model, *batch, **extra))
    return outcome.loss, dict(outcome.values)

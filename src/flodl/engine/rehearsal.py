"""The forward pass of a step on its own: nothing is updated, and everything it changes can be restored."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from flodl.core import StepError
from flodl.core.rng_state import preserve_rng_state

from .batch.samples import num_samples
from .modes import enter_training
from .program.outcome import outcome_of
from .program.precision import computing_in
from .state.outside import OutsideTensors
from .state.plain_tensors import PlainTensor
from .state.sandbox import restored_afterwards
from .state.written_attributes import WrittenAttribute
from .step import TrainStep


@contextmanager
def sandbox(step: TrainStep, *reached: Any) -> Iterator[None]:
    """Restore everything that the block changes in the model or in what the step function reaches.

    That includes buffers, attributes, also of classes and functions, closures, globals, generators and the
    global random state; `reached` are further objects, such as a batch. Raise NotRestorable, before the block
    runs, if the step may change something that cannot be restored.

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


def trial_copy(step: TrainStep, *, schedule: Callable[[int], float]) -> TrainStep:
    """Return an eager step that trains copies of the model and the optimizer with another learning rate.

    The groups keep the ratios of their rates. The step itself, its model and its optimizer do not change.

    >>> model = torch.nn.Linear(2, 2)
    >>> step = TrainStep(
    ...     model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x: m(x).square().mean()
    ... )
    >>> copied, before = trial_copy(step, schedule=lambda at: 1.0), model.weight.clone()
    >>> _ = copied(torch.ones(3, 2))
    >>> copied.updates, step.updates, torch.equal(model.weight, before)
    (1, 0, True)
    """
    body, settings = step._body, step.settings
    try:
        model, optimizer = copy.deepcopy((body.model, body.optimizer))
    except Exception as error:
        raise StepError(f"the model cannot be copied for a trial: {type(error).__name__}: {error}") from error
    enter_training(model)
    groups = optimizer.param_groups
    if any(group.get("lr") is None for group in groups):
        raise StepError(
            f"the groups of {type(optimizer).__name__} have no learning rate 'lr'. Use an optimizer with one."
        )
    rates = [float(group["lr"]) for group in groups] if step.schedule is None else [*step.schedule.ratios]
    if step.schedule is None and not any(rates):
        # A torch scheduler that begins with a warm-up from 0.
        rates = [float(group.get("initial_lr", 0.0)) for group in groups]
    highest = max(rates) if step.schedule is None else 1.0
    if not highest > 0:
        raise StepError("every learning rate is 0. Create the optimizer with an lr above 0.")
    ratios = [rate / highest for rate in rates]
    for group, ratio in zip(groups, ratios):
        group["lr"] = ratio
    copied = TrainStep(
        model,
        optimizer,
        body.step_fn,
        clip_norm=settings.clip_norm,
        clip_value=settings.clip_value,
        accumulate=settings.accumulate,
        precision=settings.precision,
        tier="eager",
        tail=settings.tail,
        guard=settings.guard,
        schedule=schedule,
    )
    copied._count.is_trial = True
    assert copied.schedule is not None
    copied.schedule.load_state_dict({"step": 0, "lr_scale": 1.0, "reference_lr": 1.0, "ratios": ratios})
    return copied


def watch_outside(step: TrainStep, *, saved: Iterable[Any] = ()) -> OutsideTensors:
    """Return the tensors that the step function reaches outside the model, the optimizer and `saved`."""
    body = step._body
    return OutsideTensors(body.step_fn, body.model, saved=[*saved, body.optimizer])


def carries_state(step: TrainStep, batch: tuple[Any, ...], tensors: Sequence[Tensor]) -> bool:
    """Return whether the loss of later steps depends on what a step writes to these tensors.

    Parameters always count. Memory that every step overwrites and sums that are only reported do not.
    """
    if any(isinstance(one, torch.nn.Parameter) for one in tensors):
        return True

    def shift() -> None:
        with torch.no_grad():
            for one in tensors:
                one.copy_(_shifted(one))

    return _depends_on(step, batch, shift, lambda: tensors)


def carries_attributes(step: TrainStep, batch: tuple[Any, ...], held: Sequence[PlainTensor]) -> bool:
    """Return whether the loss of later steps depends on tensors that modules store as plain attributes."""

    def shift() -> None:
        for one in held:
            one.assign(_shifted(one.tensor))

    return _depends_on(step, batch, shift, lambda: [one.current for one in held])


def starts_elsewhere(
    step: TrainStep,
    batch: tuple[Any, ...],
    written: Sequence[WrittenAttribute],
    without: Sequence[WrittenAttribute] = (),
) -> bool:
    """Return whether the loss differs between a step that starts with these attributes, and one that does
    not, or only with those in `without`.

    A hidden state makes a difference; a mask that is cached, or an output that is only stored, does not.
    """
    losses = []
    for assigned in (without, written):
        with sandbox(step, *batch):
            for one in assigned:
                one.assign()
            losses.append(rehearse(step, batch)[0].detach())
    return _differ(losses)


def depends_on_last_step(step: TrainStep, batch: tuple[Any, ...]) -> bool:
    """Return whether a second step on a batch, with the same random numbers, has another loss."""
    losses = []
    with sandbox(step, *batch):
        for _ in range(2):
            with preserve_rng_state(step._body.device):
                losses.append(rehearse(step, batch)[0].detach())
    return _differ(losses)


def _differ(losses: Sequence[Tensor]) -> bool:
    """Return whether two losses differ by more than rounding."""
    one, other = (loss.double() for loss in losses)
    return not torch.allclose(one, other, rtol=1e-5, atol=0.0, equal_nan=True)


def _shifted(tensor: Tensor) -> Tensor:
    """Return other values; a softmax would not notice if all of them were shifted equally."""
    ramp = torch.linspace(1 / 64, 3 / 64, tensor.numel(), dtype=torch.float32, device=tensor.device)
    return tensor.detach() * 0.5 + ramp.reshape(tensor.shape).to(tensor.dtype)


def _depends_on(
    step: TrainStep,
    batch: tuple[Any, ...],
    shift: Callable[[], None],
    current: Callable[[], Sequence[Tensor]],
) -> bool:
    """Return whether other values change the loss of a step, and are not overwritten by it."""
    losses, results = [], []
    for is_changed in (False, True):
        with sandbox(step, *batch):
            if is_changed:
                shift()
            loss, _ = rehearse(step, batch)
            losses.append(loss.detach())
            results.append([one.detach().clone() for one in current()])
    is_same = all(torch.equal(one, other) for one, other in zip(*results))
    return not is_same and _differ(losses)

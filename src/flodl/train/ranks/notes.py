"""What several devices do differently from one, reported once at the start where it can be seen."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.loss import _Loss, _WeightedLoss

from flodl.core.contents import is_user_file
from flodl.core.contents.reads import uses_of
from flodl.optim.all_optimizers import in_any_optimizer

from ..evaluation.outside_values import function_of, outside_values
from ..evaluation.pieces import Pieces

MAX_NAMES = 3
NOT_A_MEAN = "the loss of a batch is not the mean of its samples' losses"


def differs_from_one_device(
    model: nn.Module, step_fn: Callable[..., Any], compare: Callable[[], Pieces | None] = lambda: None
) -> Iterator[str]:
    """Yield why `policy="sync"` does not give the numbers of one device, where that can be seen.

    `compare` returns the loss of a batch and of its pieces. It is called if nothing is known about the loss.

    >>> [*differs_from_one_device(nn.BatchNorm1d(4), lambda model, x: model(x).mean())]  # doctest: +ELLIPSIS
    ["policy='sync': BatchNorm1d normalizes with the statistics of each rank's part of a batch..."]
    """
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.training and not isinstance(module, nn.SyncBatchNorm):
            where = f" ({name!r})" if name else ""
            yield (
                f"policy='sync': {type(module).__name__}{where} normalizes with the statistics of each "
                "rank's part of a batch, as in DistributedDataParallel, so the numbers differ from those of "
                "one device"
            )
            break
    of_loss = [*_loss_notes(model, step_fn)]
    if not of_loss and (pieces := compare()) is not None:
        of_loss = [*_measured_notes(pieces)]
    yield from of_loss


def _loss_notes(model: nn.Module, step_fn: Callable[..., Any]) -> Iterator[str]:
    """Yield what the modules and functions that compute the loss say about it."""
    for what in other_denominators(model, step_fn):
        yield _denominator(what)
    for name, value in outside_values(step_fn).items():
        if isinstance(value, _Loss | _WeightedLoss) and value.reduction == "sum":
            yield _sum_over_samples(f"{name} is a sum (reduction='sum')")


def other_denominators(model: nn.Module, step_fn: Callable[..., Any]) -> Iterator[str]:
    """Yield what is known to be a mean over something other than samples: the loss, or a loss module."""
    mean_over = getattr(function_of(step_fn), "mean_over", None)
    if mean_over is not None and (what := mean_over(model)):
        yield f"the loss is a mean over {what}"
    for name, value in outside_values(step_fn).items():
        is_mean = isinstance(value, _Loss | _WeightedLoss) and value.reduction == "mean"
        if is_mean and getattr(value, "weight", None) is not None:
            yield f"{name} is a mean weighted by class"


def _measured_notes(found: Pieces) -> Iterator[str]:
    """Yield what the pieces of a batch say about the loss.

    >>> [*_measured_notes(Pieces({"loss": 3.0}, [{"loss": 2.0}, {"loss": 4.0}], [0.5, 0.5]))]
    []
    """
    if found.is_sum("loss"):
        yield _sum_over_samples(
            "the loss is a sum (the loss of a batch is the sum of the losses of its pieces)"
        )
    elif not found.is_mean("loss"):
        yield _denominator(NOT_A_MEAN)


def state_outside_model(model: nn.Module, step_fn: Callable[..., Any]) -> Iterator[str]:
    """Yield a warning about state that the step function changes or that is trained elsewhere.

    Ranks are processes: each has its own copy of everything that the step function uses.
    """
    function = inspect.unwrap(function_of(step_fn))
    if isinstance(function, FunctionType) and is_user_file(function.__code__.co_filename):
        assigned = uses_of(function.__code__)[1]
        scopes = {"global": True, "free": True, "own": inspect.ismethod(step_fn)}
        local = set(function.__code__.co_cellvars)
        names = [
            ".".join((read.name, *read.attributes))
            for read in assigned
            if scopes.get(read.scope) and read.name not in local
        ]
        if names:
            yield (
                f"the step function changes {_listed(names)}. Devices train in processes of their own: each "
                "rank changes a copy, and this program does not see it. Return values as metrics, or store "
                "tensors as buffers of the model."
            )
    own = {*model.parameters(), *model.buffers()}
    trained = in_any_optimizer()
    outside = [
        name
        for name, value in outside_values(step_fn).items()
        if (isinstance(value, Tensor) and value.requires_grad and value.is_leaf and value not in own)
        or (isinstance(value, nn.Module) and _is_trained(value, trained - own))
    ]
    if outside:
        yield (
            f"the step function uses {_listed(outside)}, which is not part of the model. Devices train in "
            "processes of their own: each rank has a copy as it is now, and no later change reaches it. To "
            "train it, make it a part of the model."
        )


def records_on_ranks(metrics: Sequence[str]) -> str:
    """Return a warning about metrics that the step function records in a graph, which ranks do not send.

    >>> records_on_ranks(["mine"])[:70]
    "the step function records 'mine' in the graph. Devices train in proces"
    """
    first = metrics[0]
    return (
        f"the step function records {_listed([*metrics])} in the graph. Devices train in processes of their "
        "own: each rank records in a copy, unseen by this program. Return the value with the loss, as in "
        f"`return loss, {{{first!r}: value}}`."
    )


def _is_trained(module: nn.Module, elsewhere: set[Tensor]) -> bool:
    return any(one.requires_grad and one in elsewhere for one in module.parameters())


def _sum_over_samples(what: str) -> str:
    return (
        f"policy='sync': {what} over each rank's part of a batch, and the gradients of the ranks are "
        "averaged, so they are smaller than those of one device by about the number of ranks: the numbers "
        "always differ. For the same numbers, return the sum of the losses divided by the number of samples"
    )


def _denominator(what: str) -> str:
    return (
        f"policy='sync': {what}, and ranks weight their gradients by samples, so the numbers differ from "
        "those of one device if samples count differently. For the same numbers, return the sum of the "
        "losses divided by the number of samples"
    )


def _listed(names: list[str]) -> str:
    names = list(dict.fromkeys(names))
    shown = ", ".join(map(repr, names[:MAX_NAMES]))
    more = len(names) - MAX_NAMES
    return f"{shown} and {more} more" if more > 0 else shown

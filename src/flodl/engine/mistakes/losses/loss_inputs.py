"""Inputs and targets that a torch loss accepts but that cannot be intended: wrong activation or range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .probabilities import origin_of, probabilities_as_scores

# Sums of probabilities in 16 bits are not exact.
_ROUNDING = 0.02
_LOG_NODES = ("Log", "Logsumexp", "LogSoftmax", "LogSigmoidForward", "Log2", "Log10", "Log1P", "Logcumsumexp")
_LOGS = frozenset(f"{name}Backward0" for name in _LOG_NODES) | {"LogsumexpBackward1"}
_MOST_NODES = 10_000
_OF_CLASSES = (functional.cross_entropy, functional.nll_loss)
_CLASS_DTYPES = (torch.int64, torch.uint8)


@torch.no_grad()
def class_out_of_bounds(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> IndexError | None:
    """Return the error of torch's CPU code if a target is none of the classes, or None.

    On a CUDA device, the loss itself would fail without the value and the line, and the process could no
    longer use the device.

    >>> scores = torch.zeros(2, 3)
    >>> class_out_of_bounds(functional.cross_entropy, (scores, torch.tensor([1, 3])), None)
    IndexError('Target 3 is out of bounds.')
    >>> class_out_of_bounds(functional.cross_entropy, (scores, torch.tensor([1, -100])), None)
    """
    if func not in _OF_CLASSES:
        return None
    named = _named(args, kwargs)
    scores, target = named.get("input"), named.get("target")
    if not isinstance(scores, Tensor) or not isinstance(target, Tensor) or not scores.ndim:
        return None
    dim = min(1, scores.ndim - 1)
    num_classes = scores.shape[dim]
    # Other shapes and dtypes raise their own errors.
    if target.shape != scores.shape[:dim] + scores.shape[dim + 1 :] or target.dtype not in _CLASS_DTYPES:
        return None
    is_outside = (target < 0) | (target >= num_classes)
    is_outside &= target != named.get("ignore_index", -100)
    if not is_outside.any().item():
        return None
    wrong = target[is_outside][:1].cpu().long()
    try:
        functional.nll_loss(torch.zeros(1, num_classes), wrong)
    except IndexError as error:
        return error
    return None


def class_targets(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> tuple[Tensor, int] | None:
    """Return the class indices that a loss gets, and the one that it ignores; None for other functions.

    >>> labels = torch.tensor([1, 2])
    >>> class_targets(functional.cross_entropy, (torch.zeros(2, 3), labels), None)
    (tensor([1, 2]), -100)
    """
    if func not in _OF_CLASSES:
        return None
    named = _named(args, kwargs)
    target = named.get("target")
    return (target, named.get("ignore_index", -100)) if isinstance(target, Tensor) else None


def _named(args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of a loss over classes by name."""
    names = ("input", "target", "weight", "size_average", "ignore_index")
    return {**dict(zip(names, args)), **(kwargs or {})}


@torch.no_grad()
def loss_mistake(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, rows: int) -> str:
    """Return what is wrong with the tensors that a loss of torch gets in a batch of `rows` samples, or "".

    >>> scores = torch.zeros(4, 1, requires_grad=True)
    >>> loss_mistake(functional.cross_entropy, (scores, torch.zeros(4).long()), None, 4)[:58]
    'cross_entropy gets scores of shape [4, 1], which is one cl'
    >>> loss_mistake(functional.binary_cross_entropy_with_logits, (scores, scores), None, 4)
    ''
    """
    if func not in _CHECKS:
        return ""
    named = {**dict(zip(("input", "target", "weight"), args)), **(kwargs or {})}
    input_, target = named.get("input"), named.get("target")
    if not isinstance(input_, Tensor) or not isinstance(target, Tensor) or not input_.numel():
        return ""
    found = probabilities_as_scores(func, args, kwargs)
    return found or _CHECKS[func](func.__name__, input_, target, {**named, "rows": rows})


def _cross_entropy(name: str, scores: Tensor, target: Tensor, named: Mapping[str, Any]) -> str:
    shape = [*scores.shape]
    if scores.ndim > 1 and scores.shape[1] == 1 and len(scores) > 1:
        return (
            f"{name} gets scores of shape {shape}, which is one class, so the loss is 0 whatever the scores "
            "are. Use binary_cross_entropy_with_logits for one score per sample, or give the model one "
            "output for each class"
        )
    if scores.ndim == 1 and scores.shape == target.shape == (named["rows"],):
        total = target.double().sum().item()
        if target.is_floating_point() and abs(total - 1) > _ROUNDING:
            return (
                f"{name} gets scores and targets of shape {shape}, which it treats as one sample with "
                f"{shape[0]} classes. Use binary_cross_entropy_with_logits for one score per sample, or pass "
                f"scores of shape [{shape[0]}, classes] and class indices, y.long()"
            )
    return _other_dimension(name, scores.detach()) if origin_of(scores) == "LogSoftmaxBackward0" else ""


def _nll_loss(name: str, logs: Tensor, target: Tensor, named: Mapping[str, Any]) -> str:
    if origin_of(logs) in ("LogSoftmaxBackward0", "LogBackward0"):
        return _other_dimension(name, logs.detach())
    if not _is_without_logs(logs):
        return ""
    if _are_probabilities(logs, 1 if logs.ndim > 1 else 0):
        told = "contains probabilities. Replace softmax with log_softmax in the model"
    else:
        told = f"has values up to {logs.max().item():.3g}, above 0. End the model with log_softmax"
    return f"{name} takes log-probabilities, but its input {told}, or use cross_entropy on scores (logits)"


def _kl_div(name: str, logs: Tensor, target: Tensor, named: Mapping[str, Any]) -> str:
    if origin_of(logs) == "LogSoftmaxBackward0":
        return _other_dimension(name, logs.detach())
    if logs.shape != target.shape or not _are_probabilities(logs, -1):
        return ""
    return (
        f"{name} takes log-probabilities, but its input contains probabilities. Write "
        f"{name}(scores.log_softmax(-1), targets), with targets that are probabilities"
    )


def _of_0_to_1(name: str, scores: Tensor, target: Tensor, named: Mapping[str, Any]) -> str:
    # Other shapes are reported as such.
    if scores.shape != target.shape:
        return ""
    if named.get("reduction", "mean") == "none":  # what has no label may be left out afterwards
        return ""
    is_outside = (target < 0) | (target > 1)
    if isinstance(weight := named.get("weight"), Tensor):
        is_outside = is_outside & (weight != 0)
    if not is_outside.any().item():
        return ""
    low, high = target.min().item(), target.max().item()
    return (
        f"{name} takes targets from 0 to 1, but these range from {low:g} to {high:g}. Map labels of -1 and 1 "
        "to 0 and 1; for more than two classes, use cross_entropy; give targets to be ignored a weight of 0"
    )


_CHECKS = {
    functional.cross_entropy: _cross_entropy,
    functional.nll_loss: _nll_loss,
    functional.kl_div: _kl_div,
    functional.binary_cross_entropy_with_logits: _of_0_to_1,
}


def _is_without_logs(values: Tensor) -> bool:
    """Return whether some values are above 0, and no logarithm was taken to compute them."""
    return values.grad_fn is not None and values.max().item() > _ROUNDING / 10 and not _has_log(values)


def _other_dimension(name: str, logs: Tensor) -> str:
    """Return that a softmax was computed over a dimension that does not have the classes, or ""."""
    is_square = logs.ndim == 2 and logs.shape[0] == logs.shape[1]  # pairs of samples, in both directions
    # For kl_div, the classes may be any dimension but the samples.
    is_kl = name == "kl_div"
    if logs.ndim < 2 or is_square:
        return ""
    probabilities = logs.detach().exp()
    if any(_sums_to_one(probabilities, dim) for dim in (range(1, logs.ndim) if is_kl else (1,))):
        return ""
    for dim in (0,) if is_kl else (0, *range(2, logs.ndim)):
        if logs.shape[dim] > 1 and _sums_to_one(probabilities, dim):
            of_samples = ", the samples" if dim == 0 else ""
            return (
                f"{name} gets an input of shape {[*logs.shape]} with a softmax over dimension {dim}"
                f"{of_samples}. Compute it over the classes, dim={-1 if is_kl else 1}"
            )
    return ""


def _are_probabilities(values: Tensor, dim: int) -> bool:
    low, high = values.min().item(), values.max().item()
    return low >= 0 and high <= 1 + _ROUNDING and _sums_to_one(values, dim)


def _sums_to_one(values: Tensor, dim: int) -> bool:
    return bool(((values.detach().float().sum(dim) - 1).abs() < _ROUNDING).all().item())


def _has_log(values: Tensor) -> bool:
    """Return whether a logarithm is among the operations that computed a tensor, or may be."""
    seen: set[Any] = set()
    left: list[Any] = [values.grad_fn]
    while left and len(seen) < _MOST_NODES:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() in _LOGS:
            return True
        left.extend(following for following, _ in node.next_functions)
    return bool(left)

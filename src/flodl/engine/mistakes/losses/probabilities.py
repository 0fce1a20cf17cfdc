"""A loss that expects scores (logits) and gets the output of the sigmoid or softmax that it applies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional

# Changes of the shape or dtype between the activation and the loss.
_SAME_VALUES = frozenset(
    f"{name}Backward0"
    for name in (
        "View",
        "UnsafeView",
        "ReshapeAlias",
        "Squeeze",
        "Unsqueeze",
        "ToCopy",
        "Transpose",
        "Permute",
    )
) | {"SqueezeBackward1"}


def probabilities_as_scores(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> str:
    """Return what is wrong with the input of a loss of torch, "" if nothing is.

    A log_softmax before cross_entropy changes nothing, and is not reported.

    >>> import torch
    >>> x = torch.zeros(2, requires_grad=True)
    >>> probabilities_as_scores(functional.binary_cross_entropy_with_logits, (x.sigmoid(), x), None)
    'binary_cross_entropy_with_logits applies a sigmoid, but its input is already the output of a sigmoid. ...
    >>> probabilities_as_scores(functional.binary_cross_entropy_with_logits, (2 * x.sigmoid(), x), None)
    ''
    """
    if func is functional.binary_cross_entropy_with_logits:
        applied, node = "sigmoid", "SigmoidBackward0"
        advice = "Remove one of them: return scores (logits) from the model, or use binary_cross_entropy"
    elif func is functional.cross_entropy:
        applied, node = "softmax", "SoftmaxBackward0"
        advice = "Remove the one in the model, which should return scores (logits)"
    else:
        return ""
    scores = args[0] if args else (kwargs or {}).get("input")
    if not isinstance(scores, Tensor) or origin_of(scores) != node:
        return ""
    return (
        f"{func.__name__} applies a {applied}, but its input is already the output of a {applied}. {advice}"
    )


def origin_of(tensor: Tensor) -> str:
    """Return the name of the function in the autograd graph that computed the values of a tensor."""
    node: Any = tensor.grad_fn
    while node is not None and node.name() in _SAME_VALUES:
        node = node.next_functions[0][0]
    return "" if node is None else str(node.name())

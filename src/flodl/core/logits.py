"""Notice logits where probabilities are expected, without waiting for a device."""

from __future__ import annotations

import torch
from torch import Tensor

# How a linear layer ends in the autograd graph, and what may follow that changes no value.
_LINEAR = {"AddmmBackward0", "MmBackward0", "BmmBackward0", "BaddbmmBackward0", "LinearBackward0"}
_SAME_VALUES = {"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "ToCopyBackward0"}
# A straight-through estimator computes 0 + p − p, which is not always exactly 0.
_ROUNDING = 1e-3


def looks_like_logits(weights: Tensor, *, wait: bool = False) -> str | None:
    """Return why these values cannot be the weights of a router, or None.

    The output of a linear layer is recognized on every device; values are read on the CPU, and on other
    devices if `wait` allows it.

    >>> looks_like_logits(torch.tensor([[1.5, -2.0]]))
    'values from -2 to 1.5'
    >>> looks_like_logits(torch.tensor([[1.5, -2.0]]).softmax(dim=-1))
    """
    if torch.compiler.is_compiling() or weights.is_meta or not weights.numel():
        return None
    node = weights.grad_fn
    while node is not None and node.name() in _SAME_VALUES:
        node = node.next_functions[0][0]
    if node is not None and node.name() in _LINEAR:
        return "the output of a linear layer"
    if not weights.is_floating_point() or not _may_read(weights, wait=wait):
        return None
    smallest, largest = weights.detach().aminmax()
    return f"values from {float(smallest):.4g} to {float(largest):.4g}" if smallest < -_ROUNDING else None


def _may_read(tensor: Tensor, *, wait: bool) -> bool:
    """Whether the values can be read here: not while functions are transformed or a device must not wait."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    if not tensor.is_cuda:
        return tensor.device.type == "cpu"
    return wait and not torch.cuda.is_current_stream_capturing() and torch.cuda.get_sync_debug_mode() == 0

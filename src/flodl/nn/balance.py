"""A loss that keeps a router from sending everything to a few experts (Fedus et al., 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from flodl.core import RouteError, ShapeError
from flodl.core.formats import a_type
from flodl.core.integers import as_integer, is_integer
from flodl.core.logits import looks_like_logits


def load_balancing_loss(weights: Tensor, top_k: int = 1) -> Tensor:
    """Multiply each expert's share of the rows by its mean weight, sum, and scale by the number of experts.

    `weights` are the outputs of a softmax router before the choice, [..., experts]; `top_k` is how many
    experts each row uses. The loss is 1 if the rows are spread evenly, and grows up to the number of experts
    if all go to one. The gradient flows through the mean weights.

    >>> load_balancing_loss(torch.tensor([[0.9, 0.1], [0.1, 0.9]]))
    tensor(1.)
    >>> load_balancing_loss(torch.tensor([[0.9, 0.1], [0.9, 0.1]]))
    tensor(1.8000)
    """
    if not isinstance(weights, Tensor):
        raise ShapeError(f"the weights are {a_type(weights)}. Pass the output of a router, [..., experts].")
    num_experts = weights.shape[-1] if weights.dim() else 0
    if weights.dim() < 2 or weights.numel() == 0:
        raise ShapeError(
            f"the weights have shape {tuple(weights.shape)}. Pass the output of a router, [..., experts], "
            "with one row for each sample or step."
        )
    top_k = as_integer(top_k)
    if not is_integer(top_k, at_least=1) or top_k > num_experts:
        raise ValueError(
            f"top_k={top_k!r} for {num_experts} experts. Use an integer from 1 to {num_experts}."
        )
    if (found := looks_like_logits(weights)) is not None:
        raise RouteError(
            f"load_balancing_loss got {found}: these are logits, and the loss needs the probabilities of the "
            "experts. Pass logits.softmax(dim=-1)."
        )
    rows = weights.reshape(-1, num_experts)
    chosen = rows.detach().topk(top_k, dim=-1).indices
    share = torch.zeros_like(rows, requires_grad=False).scatter(-1, chosen, 1.0 / top_k).mean(dim=0)
    return num_experts * (share * rows.mean(dim=0)).sum()

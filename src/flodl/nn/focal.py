"""Focal loss: cross-entropy that gives less weight to well-classified samples (Lin et al., 2017)."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from flodl.core import ShapeError
from flodl.core.formats import a_type

from .numbers import is_integer, is_number

Reduction: TypeAlias = Literal["mean", "sum", "none"]


def focal_loss(
    logits: Tensor,
    target: Tensor,
    alpha: float | Tensor = 1.0,
    gamma: float = 2.0,
    *,
    reduction: Reduction = "mean",
    ignore_index: int = -100,
) -> Tensor:
    """Weight the cross-entropy of each sample by alpha·(1 − p)^gamma; p is the probability of its class.

    `logits` are [N, C] or [N, C, ...] and `target` contains class indices, [N] or [N, ...], as for
    `torch.nn.functional.cross_entropy`, which equals alpha=1, gamma=0. `alpha` may be a tensor with one
    weight per class. The mean is taken over the samples that are not ignored.

    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> print(focal_loss(logits, torch.tensor([0, 0]), reduction="none"))
    tensor([0.0018, 1.6501])
    """
    for name, value in (("logits are", logits), ("target is", target)):
        if not isinstance(value, Tensor):
            raise ShapeError(f"focal_loss: the {name} {a_type(value)}. Pass a tensor.")
    _check_settings(alpha, gamma, reduction, ignore_index)
    target = _class_indices(logits, target)
    entropy = functional.cross_entropy(logits, target, reduction="none", ignore_index=ignore_index)
    # expm1 of the log-probability stays precise near p = 1. The clamp avoids 0, where the derivative of a
    # power below 1 is infinite.
    missed = (-torch.expm1(-entropy)).clamp_min(torch.finfo(entropy.dtype).tiny)
    counted = target != ignore_index
    if isinstance(alpha, Tensor):
        classes = logits.shape[1 if logits.dim() > 1 else 0]
        if alpha.shape != (classes,):
            raise ShapeError(
                f"alpha has shape {list(alpha.shape)} for logits of {classes} classes. "
                f"Pass one weight per class, a tensor of shape [{classes}], or one number for all."
            )
        alpha = alpha.to(entropy)[target.where(counted, 0)]
    loss = alpha * missed**gamma * entropy
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / counted.sum()


class FocalLoss(nn.Module):
    """`focal_loss` as a module.

    >>> FocalLoss(alpha=0.25, gamma=2.0)
    FocalLoss(alpha=0.25, gamma=2.0, reduction='mean', ignore_index=-100)
    """

    alpha: float | Tensor

    def __init__(
        self,
        alpha: float | Tensor = 1.0,
        gamma: float = 2.0,
        *,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        _check_settings(alpha, gamma, reduction, ignore_index)
        if isinstance(alpha, Tensor):
            self.register_buffer("alpha", alpha)
        else:
            self.alpha = alpha
        self.gamma = gamma
        self.reduction: Reduction = reduction
        self.ignore_index = ignore_index

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return focal_loss(
            logits,
            target,
            self.alpha,
            self.gamma,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
        )

    def extra_repr(self) -> str:
        alpha = f"<{len(self.alpha)} classes>" if isinstance(self.alpha, Tensor) else self.alpha
        settings = f"alpha={alpha}, gamma={self.gamma}"
        return f"{settings}, reduction={self.reduction!r}, ignore_index={self.ignore_index}"


def _check_settings(alpha: Any, gamma: Any, reduction: str, ignore_index: Any) -> None:
    if not isinstance(alpha, Tensor) and not (is_number(alpha) and 0 <= alpha < math.inf):
        raise ValueError(
            f"focal_loss: alpha={alpha!r}, expected a finite weight of at least 0; the default is 1.0."
        )
    if not is_number(gamma) or not 0 <= gamma < math.inf:
        raise ValueError(
            f"focal_loss: gamma={gamma!r}, expected a finite number of at least 0; 0 is cross-entropy."
        )
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"focal_loss: reduction={reduction!r}, expected 'mean', 'sum' or 'none'.")
    if not is_integer(ignore_index):
        raise ValueError(
            f"focal_loss: ignore_index={ignore_index!r}, expected a class index; the default is -100."
        )


def _class_indices(logits: Tensor, target: Tensor) -> Tensor:
    expected = logits.shape[:1] + logits.shape[2:] if logits.dim() > 1 else logits.shape[:0]
    if logits.dim() == 0 or target.shape != expected or target.is_floating_point():
        raise ShapeError(
            f"focal_loss: the target is {target.dtype} of shape {list(target.shape)} for logits of shape "
            f"{list(logits.shape)}. Pass logits [N, C, ...] and integer class indices [N, ...]."
        )
    return target.long()

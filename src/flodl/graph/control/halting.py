"""Halting conditions of loops: a value above zero means stop."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from flodl.core import LoopError
from flodl.core.integers import is_index, is_number
from flodl.core.usage.calls import LoopCallError, explain_creation

from ..plan.memory import tensors


@explain_creation(LoopCallError, example="Write ThresholdHalt(0.5).")
class ThresholdHalt(nn.Module):
    """Stop when the largest element of the batch, or of each sample, is above a threshold.

    >>> import torch
    >>> ThresholdHalt(10.0)(torch.tensor([[8.0, 16.0], [1.0, 2.0]]))
    tensor(6.)
    >>> ThresholdHalt(10.0, per_sample=True)(torch.tensor([[8.0, 16.0], [1.0, 2.0]]))
    tensor([ 6., -8.])
    """

    def __init__(self, threshold: float, *, per_sample: bool = False) -> None:
        super().__init__()
        given: Any = threshold
        if not is_number(given) and not isinstance(given, Tensor):
            raise LoopError(f"ThresholdHalt got the threshold {threshold!r:.60}. Pass a number.")
        self.threshold = threshold
        self.per_sample = per_sample

    def forward(self, state: Any) -> Tensor:
        first = tensors(state)[0]
        largest = first.flatten(1).amax(1) if self.per_sample and first.dim() > 1 else first
        return largest - self.threshold if self.per_sample else largest.amax() - self.threshold

    def extra_repr(self) -> str:
        return f"{self.threshold}" + (", per_sample=True" if self.per_sample else "")


@explain_creation(LoopCallError, example="Write LearnedHalt(64).")
class LearnedHalt(nn.Module):
    """Learn when to stop: the loop weights each iteration by the probability of stopping after it.

    The output of such a loop is the expected state, so the halt receives a gradient from the loss.
    The weights of the iterations are published as the trace `halt`. No iteration is skipped and there is no
    host sync, so a loop with a learned halt can be captured.
    """

    weighs_turns = True

    def __init__(self, in_features: int) -> None:
        super().__init__()
        if not is_index(in_features, at_least=1):
            raise LoopError(
                f"LearnedHalt got in_features={in_features!r:.60}. Pass the width of the loop's state."
            )
        self.linear = nn.Linear(in_features, 1)

    def forward(self, state: Any) -> Tensor:
        logits: Tensor = self.linear(tensors(state)[0])
        return logits.flatten(1).mean(1) if logits.dim() > 1 else logits.reshape(())

"""Accuracy of classes, and F1 of several labels per text."""

from __future__ import annotations

import torch
from torch import Tensor

from flodl.core import HFError

from ..losses import IGNORED


class Accuracy:
    """The fraction of correct classes, of texts or of tokens; labels of −100 do not count.

    >>> accuracy = Accuracy()
    >>> accuracy.update(torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]), torch.tensor([1, 1, -100]))
    >>> accuracy.compute()
    0.5
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again."""
        self._right: Tensor | float = 0.0
        self._total: Tensor | float = 0.0

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        """Add logits […, classes] and labels […]."""
        if predictions.shape[:-1] != labels.shape:
            raise HFError(
                f"accuracy needs one class id per text or token, and the labels have the shape "
                f"{tuple(labels.shape)} for predictions of shape {tuple(predictions.shape)}. For several "
                "labels per text, load the model with problem_type='multi_label_classification'."
            )
        counted = labels != IGNORED
        self._right = self._right + ((predictions.argmax(-1) == labels) & counted).sum()
        self._total = self._total + counted.sum()

    def compute(self) -> float:
        """Return the accuracy; NaN without labels."""
        return _ratio(self._right, self._total)


class MultilabelF1:
    """The F1 of all decisions together (micro average): a label is predicted if its logit is positive.

    >>> f1 = MultilabelF1()
    >>> f1.update(torch.tensor([[2.0, 1.0, -1.0]]), torch.tensor([[1.0, 0.0, 1.0]]))
    >>> f1.compute()
    0.5
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again."""
        self._both: Tensor | float = 0.0
        self._sum: Tensor | float = 0.0

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        """Add logits and labels of 0 and 1, both [texts, labels]."""
        if predictions.shape != labels.shape:
            raise HFError(
                "F1 needs a 0 or 1 for each label of each text, and the labels have the shape "
                f"{tuple(labels.shape)} for predictions of shape {tuple(predictions.shape)}. Create the "
                "metrics with the model that is trained: model.metrics(…)."
            )
        # Rows of a packed batch without a text have labels below zero.
        chosen, wanted = (predictions > 0) & (labels >= 0), labels > 0.5
        self._both = self._both + 2 * (chosen & wanted).sum()
        self._sum = self._sum + chosen.sum() + wanted.sum()

    def compute(self) -> float:
        """Return F1; 0 if nothing was predicted or expected."""
        return _ratio(self._both, self._sum) if float(self._sum) else 0.0


def _ratio(part: Tensor | float, whole: Tensor | float) -> float:
    return float(part) / float(whole) if float(whole) else float(torch.nan)

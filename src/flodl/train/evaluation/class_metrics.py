"""Metrics of each class, and the confusion matrix, from the counts of targets and predictions."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import torch
from torch import Tensor

from flodl.core import TrainError
from flodl.core.integers import is_index
from flodl.core.usage.calls import explain_creation

from ..checks.calls import WrongCallError

_CLASSES = "The first argument is the number of classes, or a list of their names."
# What others call it.
_ELSEWHERE = {
    **dict.fromkeys(("num_classes", "n_classes", "classes", "class_names", "names"), _CLASSES),
    **dict.fromkeys(("average", "task"), "Leave it out: every class has its own value."),
}


@explain_creation(
    WrongCallError,
    elsewhere=_ELSEWHERE,
    example="Write ConfusionMatrix(3) or ConfusionMatrix(['cat', 'dog']).",
)
class ConfusionMatrix:
    """Count predictions by class: a row for each target, a column for each prediction.

    `labels` are the names of the classes, or their number. Predictions are scores […, classes] or class ids;
    targets below 0 do not count. For scores [N, classes, …], as `cross_entropy` takes them, pass `dim=1`.
    Scores with a NaN predict nothing: they are in no column, and they are errors for the metrics below.

    >>> confusion = ConfusionMatrix(["cat", "dog"])
    >>> confusion.update(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]))
    >>> confusion.compute().tolist()
    [[1, 1], [0, 1]]
    """

    def __init__(self, labels: int | Sequence[str], *, dim: int | None = None) -> None:
        self.labels = _names(labels)
        if len(self.labels) < 2 or len(set(self.labels)) < len(self.labels):
            raise TrainError(
                f"{type(self).__name__}({labels!r}). Pass the number of classes, at least 2, or a list with "
                "a different name for each."
            )
        if dim is not None and (not isinstance(dim, int) or isinstance(dim, bool)):
            raise TrainError(
                f"{type(self).__name__}(…, dim={dim!r}). Pass the dimension of the classes in the scores: 1 "
                "for [N, classes, …], -1 for […, classes]."
            )
        # The dimension of the classes in scores; None until an unambiguous batch shows that it is the last.
        self._dim = dim
        self.reset()

    def reset(self) -> None:
        """Start again."""
        self._counts: Tensor | None = None

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        """Add a batch: scores […, classes] or class ids […], and class ids […]."""
        predictions, targets = torch.as_tensor(predictions), torch.as_tensor(targets)
        size, counted = len(self.labels), targets >= 0
        if predictions.is_floating_point() or predictions.shape != targets.shape:
            scores = self._with_classes_last(predictions, targets)
            # The column after the last class is for samples without a prediction.
            predictions = scores.argmax(-1).where(~scores.isnan().any(-1), size)
        else:
            self._check_classes("prediction", predictions[counted])
        self._check_classes("target", targets[counted])
        cells = targets[counted].long() * (size + 1) + predictions[counted].long()
        found = torch.bincount(cells, minlength=size * (size + 1))
        self._counts = found if self._counts is None else self._counts + found

    def _check_classes(self, what: str, ids: Tensor) -> None:
        unknown = ids[(ids < 0) | (ids >= len(self.labels))]
        if len(unknown):
            raise TrainError(
                f"a {what} is class {int(unknown[0])}, and there are {len(self.labels)} classes: 0 to "
                f"{len(self.labels) - 1}."
            )

    def _with_classes_last(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return scores as […, classes], or raise if their shape does not fit or may mean two things."""
        size, shape = len(self.labels), tuple(targets.shape)
        is_second = scores.ndim > 2 and scores.shape == (*shape[:1], size, *shape[1:])
        if self._dim is None and is_second:
            is_last = scores.shape == (*shape, size)
            raise TrainError(
                f"the {size} classes {'may be the last or' if is_last else 'are'} the second dimension of "
                f"predictions of the shape {tuple(scores.shape)}, for targets of the shape {shape}. Write "
                f"{type(self).__name__}(…, dim=1) for scores [N, classes, …], as cross_entropy takes them"
                f"{', or dim=-1 for […, classes]' if is_last else ''}."
            )
        if self._dim is not None and -scores.ndim <= self._dim < scores.ndim:
            scores = scores.movedim(self._dim, -1)
        if scores.shape != (*shape, size):
            raise TrainError(
                f"there are {size} classes, and the predictions have the shape {tuple(scores.shape)} for "
                f"targets of the shape {shape}. Expected {(*shape, size)}: a score for each class, or class "
                f"ids.{self._for_one_score(scores, shape)}"
            )
        if self._dim is None and scores.ndim > 2:
            self._dim = -1
        return scores

    def _for_one_score(self, scores: Tensor, shape: tuple[int, ...]) -> str:
        """Return the advice for a model with one output for two classes."""
        if len(self.labels) > 2 or scores.shape not in (shape, (*shape, 1)):
            return ""
        score = "model(x)" if scores.shape == shape else "model(x).squeeze(-1)"
        return (
            " For one score per sample, as with binary_cross_entropy_with_logits, pass class ids: "
            f"outputs=lambda model, x, y: (({score} > 0).long(), y)."
        )

    def compute(self) -> Tensor:
        """Return the counts so far."""
        return self._all_counts()[:, :-1]

    def _all_counts(self) -> Tensor:
        """Return the counts, with a last column for samples without a prediction."""
        size = len(self.labels)
        counts = torch.zeros(size * (size + 1), dtype=torch.long) if self._counts is None else self._counts
        return counts.reshape(size, size + 1).cpu()


def _names(labels: Any) -> list[str]:
    """Return the names of the classes, in order; none if the labels are not a number or a list of names.

    >>> _names(2), _names(["cat", "dog"]), _names(None), _names({"cat", "dog"})
    (['0', '1'], ['cat', 'dog'], [], [])
    """
    if is_index(labels, at_least=0):
        return [str(number) for number in range(int(labels))]
    if isinstance(labels, str | bytes | bool | Set):  # the order of a set is random
        return []
    try:
        return [str(name) for name in labels]
    except TypeError:
        return []


@explain_creation(
    WrongCallError, elsewhere=_ELSEWHERE, example="Write ClassAccuracy(3) or ClassAccuracy(['cat', 'dog'])."
)
class ClassAccuracy(ConfusionMatrix):
    """The fraction of each class that is predicted correctly; NaN for a class without targets.

    The mean that a `Trainer` reports leaves out the classes that are NaN.

    >>> accuracy = ClassAccuracy(["cat", "dog"])
    >>> accuracy.update(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]))
    >>> accuracy.compute().tolist()
    [0.5, 1.0]
    """

    def compute(self) -> Tensor:
        """Return the accuracy of each class."""
        counts = self._all_counts().double()
        return counts.diagonal() / counts.sum(dim=1)


@explain_creation(
    WrongCallError, elsewhere=_ELSEWHERE, example="Write ClassF1(3) or ClassF1(['cat', 'dog'])."
)
class ClassF1(ConfusionMatrix):
    """The F1 of each class; NaN for a class that is neither a target nor predicted.

    The mean that a `Trainer` reports leaves out the classes that are NaN.

    >>> f1 = ClassF1(3)
    >>> f1.update(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]))
    >>> [round(value, 2) for value in f1.compute().tolist()]
    [0.67, 0.67, nan]
    """

    def compute(self) -> Tensor:
        """Return the F1 of each class."""
        counts = self._all_counts().double()
        return 2 * counts.diagonal() / (counts.sum(dim=0)[:-1] + counts.sum(dim=1))

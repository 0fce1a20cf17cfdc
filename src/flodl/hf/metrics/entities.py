"""Precision, recall and F1 of entities, by the rules of the CoNLL evaluation script."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from flodl.core import HFError

from ..losses import IGNORED

Entity = tuple[str, int, int]


def find_entities(tags: Sequence[str]) -> list[Entity]:
    """Return type, first and last word of each entity, from tags such as B-PER, I-PER, O.

    IOB1, IOB2, IOE and BIOES are read. An I- after O or after another type starts an entity. Tags without a
    mark, such as PER, form an entity where they follow each other.

    >>> find_entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [('PER', 0, 1), ('LOC', 3, 3), ('LOC', 4, 4)]
    """
    found: list[Entity] = []
    begin, before, kind_before = 0, "O", ""
    for index, tag in enumerate([*tags, "O"]):
        mark, kind = _split(tag)
        if before != "O" and _ends(before, mark, kind_before, kind):
            found.append((kind_before, begin, index - 1))
        if mark != "O" and _starts(before, mark, kind_before, kind):
            begin = index
        before, kind_before = mark, kind
    return found


def _split(tag: str) -> tuple[str, str]:
    """Return B, I, E, S or O, and the type; a tag without a mark, such as PER, is inside."""
    mark, dash, kind = tag.partition("-")
    if dash and mark in ("B", "I", "E", "S"):
        return mark, kind
    return ("O", "") if tag in ("O", "") else ("I", tag)


def _ends(before: str, mark: str, kind_before: str, kind: str) -> bool:
    return before in ("E", "S") or mark in ("B", "S", "O") or kind_before != kind


def _starts(before: str, mark: str, kind_before: str, kind: str) -> bool:
    return mark in ("B", "S") or before in ("E", "S", "O") or kind_before != kind


class EntityF1:
    """Precision, recall and F1 over all entities; an entity counts if its type and both ends are correct.

    >>> metric = EntityF1(["O", "B-PER", "I-PER"])
    >>> metric.add([1, 2, 0], [1, 2, 1])
    >>> metric.compute()
    {'precision': 1.0, 'recall': 0.5, 'f1': 0.666...}
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = tuple(labels)
        self.reset()

    def reset(self) -> None:
        """Start again."""
        self._right = self._predicted = self._actual = 0

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        """Add logits [texts, tokens, tags] and labels [texts, tokens]; tokens with −100 do not count."""
        if predictions.ndim != 3 or predictions.shape[-1] != len(self.labels):
            raise HFError(
                f"entity F1 was created for {len(self.labels)} tags and needs logits [texts, tokens, tags]; "
                f"the predictions have the shape {tuple(predictions.shape)}. Create the metrics with the "
                "model that is trained: model.metrics(…)."
            )
        chosen, wanted = predictions.argmax(-1).cpu().numpy(), labels.cpu().numpy()
        for found, expected in zip(chosen, wanted):
            counted = expected != IGNORED
            self.add(found[counted].tolist(), expected[counted].tolist())

    def add(self, predicted: Sequence[int], expected: Sequence[int]) -> None:
        """Add the tags of one text."""
        found = set(find_entities([self.labels[tag] for tag in predicted]))
        actual = set(find_entities([self.labels[tag] for tag in expected]))
        self._right += len(found & actual)
        self._predicted += len(found)
        self._actual += len(actual)

    def compute(self) -> dict[str, float]:
        """Return the three numbers; 0 where there is nothing to divide by."""
        precision = self._right / self._predicted if self._predicted else 0.0
        recall = self._right / self._actual if self._actual else 0.0
        total = self._predicted + self._actual
        return {"precision": precision, "recall": recall, "f1": 2 * self._right / total if total else 0.0}

"""From labeled tokens to entities, by the rules of the pipeline of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .results import Entity

Join = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class Tagged:
    """A token (or a word) with the probability of each label; `continues` the word before it or not."""

    word: str
    scores: np.ndarray[Any, Any]
    start: int
    end: int
    index: int
    continues: bool

    @property
    def best(self) -> int:
        """The label with the highest probability."""
        return int(self.scores.argmax())


@dataclass(frozen=True, slots=True)
class Group:
    """Tokens of one entity, joined."""

    label: str
    score: float
    word: str
    start: int
    end: int


def merge_words(tokens: Iterable[Tagged], strategy: str, join: Join) -> list[Tagged]:
    """Merge the tokens of each word; the strategy decides on its scores."""
    words: list[list[Tagged]] = []
    for token in tokens:
        if words and token.continues:
            words[-1].append(token)
        else:
            words.append([token])
    return [_merge(word, strategy, join) for word in words]


def _merge(tokens: Sequence[Tagged], strategy: str, join: Join) -> Tagged:
    if strategy == "first":
        scores = tokens[0].scores
    elif strategy == "max":
        scores = max(tokens, key=lambda token: float(token.scores.max())).scores
    else:
        scores = np.nanmean(np.stack([token.scores for token in tokens]), axis=0)
    word = join([token.word for token in tokens])
    return Tagged(word, scores, tokens[0].start, tokens[-1].end, tokens[0].index, False)


def group(tokens: Iterable[Tagged], labels: Sequence[str], join: Join) -> list[Group]:
    """Join neighbors with the same label; a label that starts with `B-` starts a new group."""
    groups: list[list[Tagged]] = []
    last = ""
    for token in tokens:
        starts, kind = _parts(labels[token.best])
        if groups and kind == last and not starts:
            groups[-1].append(token)
        else:
            groups.append([token])
        last = kind
    return [_joined(members, labels, join) for members in groups]


def _joined(tokens: Sequence[Tagged], labels: Sequence[str], join: Join) -> Group:
    label = labels[tokens[0].best].split("-", 1)[-1]
    score = float(np.nanmean([token.scores[token.best] for token in tokens]))
    return Group(label, score, join([token.word for token in tokens]), tokens[0].start, tokens[-1].end)


def _parts(label: str) -> tuple[bool, str]:
    """Return whether a label starts an entity, and the label without its prefix."""
    if label.startswith(("B-", "I-")):
        return label.startswith("B-"), label[2:]
    return False, label


def without_overlaps(entities: Sequence[Entity]) -> list[Entity]:
    """Of entities that overlap, which windows of one text find twice, keep the longest."""
    found: list[Entity] = []
    for entity in sorted(entities, key=lambda entity: entity.start):
        if found and found[-1].start <= entity.start < found[-1].end:
            found[-1] = max(found[-1], entity, key=lambda item: (item.end - item.start, item.score))
        else:
            found.append(entity)
    return found

"""What `predict` returns: small objects with named fields.

The fields can also be read like those of a dict, `answer["score"]`, and `dict(answer)` converts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, overload


@dataclass(frozen=True, slots=True)
class Result:
    """The base of all results."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict of plain Python values."""
        return {name: self[name] for name in self.keys()}

    def keys(self) -> list[str]:
        """Return the names of the fields."""
        return [field.name for field in fields(self)]

    def __getitem__(self, name: str) -> Any:
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)


@dataclass(frozen=True, slots=True)
class LabelScore(Result):
    """A label and its score; unpacks into the two.

    >>> label, score = LabelScore("joy", 0.875)
    >>> label, score
    ('joy', 0.875)
    """

    label: str
    score: float

    def __iter__(self) -> Iterator[Any]:
        return iter((self.label, self.score))


@dataclass(frozen=True, slots=True)
class Classification(Sequence[LabelScore]):
    """The labels of one text, the best first; `label` and `score` are those of the best.

    >>> result = Classification((LabelScore("joy", 0.75), LabelScore("fear", 0.25)))
    >>> result.label, result.score, len(result), result[1].label
    ('joy', 0.75, 2, 'fear')
    >>> result.to_dict()
    {'joy': 0.75, 'fear': 0.25}
    """

    scores: tuple[LabelScore, ...]

    @property
    def label(self) -> str:
        """The label with the highest score."""
        return self.scores[0].label

    @property
    def score(self) -> float:
        """The highest score; for regression, the predicted value."""
        return self.scores[0].score

    def above(self, threshold: float = 0.5) -> list[str]:
        """Return the labels whose score is above the threshold: the answer of a multi-label model."""
        return [item.label for item in self.scores if item.score > threshold]

    def to_dict(self) -> dict[str, float]:
        """Return the scores by label."""
        return {item.label: item.score for item in self.scores}

    @overload
    def __getitem__(self, index: int) -> LabelScore: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LabelScore, ...]: ...
    @overload
    def __getitem__(self, index: str) -> Any: ...
    def __getitem__(self, index: int | slice | str) -> Any:
        if isinstance(index, str):
            return self.scores[0][index]
        return self.scores[index]

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        shown = ", ".join(f"{item.label} {item.score:.4g}" for item in self.scores[:5])
        return f"Classification({shown}{', …' if len(self.scores) > 5 else ''})"


@dataclass(frozen=True, slots=True)
class TaggedToken(Result):
    """A token with its label; `text[start:end]` is what it stands for."""

    label: str
    score: float
    word: str
    start: int
    end: int
    index: int

    def __repr__(self) -> str:
        return f"TaggedToken({self.label} {self.word!r} {self.start}:{self.end}, score {self.score:.4g})"


@dataclass(frozen=True, slots=True)
class Entity(Result):
    """Neighboring tokens with the same label; `text[start:end]` is what they stand for.

    `word` is the text as the tokenizer writes it, for example in lower case.
    """

    label: str
    score: float
    word: str
    start: int
    end: int
    text: str

    def __repr__(self) -> str:
        return f"Entity({self.label} {self.text!r} {self.start}:{self.end}, score {self.score:.4g})"


@dataclass(frozen=True, slots=True)
class Answer(Result):
    """A span of the context: `context[start:end]`. The empty answer means that there is none.

    `no_answer_score` is the probability that the context does not contain an answer.
    """

    answer: str
    score: float
    start: int
    end: int
    no_answer_score: float

    @property
    def text(self) -> str:
        """The answer."""
        return self.answer

    def __repr__(self) -> str:
        return f"Answer({self.answer!r} {self.start}:{self.end}, score {self.score:.4g})"


@dataclass(frozen=True, slots=True)
class Fill(Result):
    """A token for a mask: its id, its text, its probability, and the text with it filled in."""

    token: int
    token_str: str
    score: float
    sequence: str

    def __repr__(self) -> str:
        return f"Fill({self.token_str!r} {self.score:.4g}, {self.sequence!r})"

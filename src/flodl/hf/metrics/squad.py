"""The official metric of SQuAD: exact match and F1 of normalized answers."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from flodl.core import HFError
from flodl.core.formats import a_type

from ..data.dataset import TextDataset
from ..data.targets import SpanTargets
from ..predict.answer import Window, best_answers
from ..predict.runner import to_float

if TYPE_CHECKING:
    from ..data import TextDataset

_POSITIONS = ("start_positions", "end_positions")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Convert to lower case; drop punctuation, articles and extra white space.

    >>> normalize_answer("The  Eiffel Tower!")
    'eiffel tower'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """Return 1 if the normalized texts are equal, else 0."""
    return float(normalize_answer(prediction) == normalize_answer(answer))


def answer_f1(prediction: str, answer: str) -> float:
    """Return the F1 of the words of two normalized texts.

    >>> answer_f1("in Paris, France", "Paris")
    0.5
    """
    found, expected = normalize_answer(prediction).split(), normalize_answer(answer).split()
    if not found or not expected:
        return float(found == expected)
    same = sum((Counter(found) & Counter(expected)).values())
    return 2 * same / (len(found) + len(expected))


def squad_scores(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return both scores in percent: the best over the accepted answers, averaged over the questions.

    A question without accepted answers has the right answer "", as in SQuAD 2.

    >>> squad_scores(["the cat", "dog"], [["Cat"], ["a dog", "wolf"]])
    {'exact_match': 100.0, 'f1': 100.0}
    """
    if len(predictions) != len(answers):
        raise HFError(f"there are {len(predictions)} predictions for {len(answers)} questions.")
    total = {"exact_match": 0.0, "f1": 0.0}
    for prediction, accepted in zip(predictions, answers):
        # Answers that consist of articles and punctuation are dropped, as in the official script.
        texts = [text for text in accepted if normalize_answer(text)] or [""]
        total["exact_match"] += max(exact_match(prediction, text) for text in texts)
        total["f1"] += max(answer_f1(prediction, text) for text in texts)
    return {name: 100 * value / max(len(predictions), 1) for name, value in total.items()}


class _Tokens:
    """The part of an encoding that finding answers reads."""

    def __init__(self, characters: np.ndarray[Any, Any]) -> None:
        self.offsets = characters
        self.sequence_ids = np.where(characters[:, 0] >= 0, 1, 0)


class SquadScore:
    """Exact match and F1 over the questions of a dataset, from the logits of all its windows.

    With `no_answers` (SQuAD 2), an answer may be empty. `predictions` are the answers after `compute`.
    """

    def __init__(
        self, dataset: TextDataset, *, max_answer_len: int = 30, no_answers: bool | None = None
    ) -> None:
        if not isinstance(dataset, TextDataset):
            raise HFError(
                f"the dataset is {a_type(dataset)}; expected that of model.dataset(questions, contexts, "
                "answers)."
            )
        if dataset.questions is None or dataset.questions.answers is None:
            raise HFError(
                "the dataset has no answers. Create it with model.dataset(questions, contexts, answers)."
            )
        self._questions, self._offsets = dataset.questions, dataset.tokens.offsets
        self._answers = dataset.questions.answers
        assert isinstance(dataset.targets, SpanTargets)
        self._spans, self._pads_left = dataset.targets.spans, dataset.layout.pads_left
        self._max_answer_len = max_answer_len
        self._no_answers = any(not spans for spans in self._answers) if no_answers is None else no_answers
        self.reset()

    def reset(self) -> None:
        """Start again."""
        self._logits: dict[int, np.ndarray[Any, Any]] = {}
        self.predictions: list[str] = []

    def update(self, predictions: tuple[Tensor, Tensor], labels: Mapping[str, Tensor]) -> None:
        """Add the logits of starts and ends, each [windows, tokens]; `labels["index"]` names the windows."""
        start, end = (to_float(logits.detach()) for logits in predictions)
        indices = labels["index"].tolist()
        self._check_source(indices, labels, width=start.shape[1])
        for row, index in enumerate(indices):
            if index >= 0:
                length = int(self._offsets[index + 1] - self._offsets[index])
                self._logits[index] = np.stack([logits[row, :length] for logits in (start, end)])

    def _check_source(self, indices: Sequence[int], labels: Mapping[str, Tensor], *, width: int) -> None:
        """Raise if the windows are not those of the dataset that the metric was created with."""
        rows = [row for row, index in enumerate(indices) if index >= 0]
        chosen = np.array([indices[row] for row in rows], np.int64)
        is_own = not len(chosen) or chosen.max() < len(self._spans)
        if is_own and "start_positions" in labels:
            found = np.stack([labels[name].cpu().numpy()[rows] for name in _POSITIONS], axis=1)
            lengths = self._offsets[chosen + 1] - self._offsets[chosen]
            shifts = found - self._spans[chosen]
            # With padding on the left, positions are shifted by it.
            padding = (width - lengths if self._pads_left else np.zeros_like(lengths))[:, None]
            is_own = bool(((shifts == 0) | (shifts == padding)).all() and (lengths <= width).all())
        if not is_own:
            raise HFError(
                "the evaluation reads other questions than the dataset that the metric was created with. "
                "Pass the same dataset: metrics=model.metrics(valid) and eval_data=valid."
            )

    def compute(self) -> dict[str, float]:
        """Return exact match and F1 in percent, over the questions with at least one window seen."""
        groups: dict[int, list[Window]] = {}
        for index, (start, end) in sorted(self._logits.items()):
            characters = self._questions.characters[self._offsets[index] : self._offsets[index + 1]]
            window = Window(_Tokens(characters), start, end, int(self._questions.cls_index[index]))  # type: ignore[arg-type]
            groups.setdefault(int(self._questions.question[index]), []).append(window)
        self.predictions = [
            best_answers(
                self._questions.contexts[question],
                windows,
                max_answer_len=self._max_answer_len,
                handle_impossible_answer=self._no_answers,
            )[0].answer
            for question, windows in groups.items()
        ]
        return squad_scores(
            self.predictions, [[span.text for span in self._answers[question]] for question in groups]
        )

"""Answers to questions as positions of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flodl.core import HFError

from ..text.progress import progress_bar
from ..text.tokenizer import Tokenizer
from ..text.windows import read_windows
from .tokens import CHUNK, Array, Tokens, flat

if TYPE_CHECKING:
    from tokenizers import Encoding

# Outside the context.
NOWHERE = -1


@dataclass(frozen=True)
class AnswerSpan:
    """An accepted answer: its text, and where it starts in the context."""

    text: str
    start: int


@dataclass(frozen=True)
class Questions:
    """What a metric needs to turn positions of tokens back into text.

    Window i belongs to question `question[i]`; its token t covers the characters `characters[offset + t]` of
    the context, or −1 outside of it.
    """

    contexts: Sequence[str]
    answers: Sequence[Sequence[AnswerSpan]] | None
    question: Array
    characters: Array
    cls_index: Array

    def __len__(self) -> int:
        return len(self.contexts)


def read_answers(answers: Sequence[Any], contexts: Sequence[str]) -> list[list[AnswerSpan]]:
    """Return the accepted answers of each question, checked against its context.

    An item is `{"text": […], "answer_start": […]}` as in the SQuAD dataset of Hugging Face, a list of
    `{"text": …, "answer_start": …}` as in its JSON files, or empty for a question without an answer.
    """
    if len(answers) != len(contexts):
        raise HFError(
            f"there are {len(contexts)} questions and {len(answers)} answers; expected one per question."
        )
    found = []
    for index, (item, context) in enumerate(zip(answers, contexts)):
        spans = _spans(item, index)
        for span in spans:
            there = context[span.start : span.start + len(span.text)] if span.start >= 0 else ""
            if there != span.text:
                raise HFError(
                    f"answer {index} is {span.text!r} at character {span.start}, but the context has "
                    f"{there!r} there. Count characters from 0, in the context that you pass."
                )
        found.append([span for span in spans if span.text])
    return found


def _spans(item: Any, index: int) -> list[AnswerSpan]:
    try:
        if not item:
            return []
        if isinstance(item, Mapping):
            texts, starts = item["text"], item["answer_start"]
            if isinstance(texts, str):
                texts, starts = [texts], [starts]
            return [AnswerSpan(str(text), int(start)) for text, start in zip(texts, starts, strict=True)]
        return [AnswerSpan(str(one["text"]), int(one["answer_start"])) for one in item]
    except (KeyError, TypeError, ValueError):
        raise HFError(
            f"answer {index} is {item!r:.80}; expected {{'text': ['Paris'], 'answer_start': [42]}}, or None "
            "for a question without an answer."
        ) from None


def find_span(encoding: Encoding, cls_index: int, answer: AnswerSpan | None) -> tuple[int, int]:
    """Return the first and last token of an answer, or the [CLS] token if the window does not contain it."""
    if answer is None:
        return cls_index, cls_index
    first, last = answer.start, answer.start + len(answer.text)
    tokens = [index for index, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
    offsets = encoding.offsets
    if not tokens or offsets[tokens[0]][0] > first or offsets[tokens[-1]][1] < last:
        return cls_index, cls_index
    start = max(index for index in tokens if offsets[index][0] <= first)
    end = min(index for index in tokens if offsets[index][1] >= last)
    return start, max(start, end)


@dataclass(frozen=True)
class Windows:
    """The windows of all questions: their tokens, the positions of the answers, and the way back."""

    tokens: Tokens
    spans: Array | None
    questions: Questions


def encode_questions(
    tokenizer: Tokenizer,
    questions: Sequence[str],
    contexts: Sequence[str],
    answers: Sequence[Any] | None,
    *,
    max_length: int,
    stride: int,
    progress: bool | None = None,
) -> Windows:
    """Tokenize questions with their contexts, and find the first accepted answer in each window."""
    if len(questions) != len(contexts):
        raise HFError(
            f"there are {len(questions)} questions and {len(contexts)} contexts; expected one per question."
        )
    accepted = None if answers is None else read_answers(answers, contexts)
    rows: list[tuple[int, Any, tuple[int, int], Array, Array]] = []
    cls = tokenizer.special.cls.id
    with progress_bar(len(questions), show=progress, title="tokenize") as advance:
        for begin in range(0, len(questions), CHUNK):
            part = slice(begin, begin + CHUNK)
            groups = read_windows(
                tokenizer, questions[part], contexts[part], max_length=max_length, stride=stride
            )
            for index, group in enumerate(groups, start=begin):
                answer = accepted[index][0] if accepted is not None and accepted[index] else None
                for window in group:
                    at = window.ids.index(cls) if cls in window.ids else 0
                    rows.append((index, at, find_span(window, at, answer), *_arrays(window)))
            advance(len(groups))
    types = tokenizer.limits.has_token_types
    tokens = Tokens.joined([row[3][0] for row in rows], [row[3][1] for row in rows] if types else None)
    way_back = Questions(
        contexts,
        accepted,
        np.array([row[0] for row in rows], np.int64),
        flat([row[4].ravel() for row in rows], np.int32).reshape(-1, 2),
        np.array([row[1] for row in rows], np.int64),
    )
    spans = np.array([row[2] for row in rows], np.int64).reshape(-1, 2)
    return Windows(tokens, None if answers is None else spans, way_back)


def _arrays(window: Encoding) -> tuple[Array, Array]:
    """Return ids and types of a window, and the characters of its tokens."""
    inside = np.array([sequence == 1 for sequence in window.sequence_ids])
    characters = np.where(inside[:, None], np.array(window.offsets, np.int32).reshape(-1, 2), NOWHERE)
    return np.array([window.ids, window.type_ids], np.int32), characters.astype(np.int32)

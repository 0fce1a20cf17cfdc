"""Extractive question answering: spans of a context, read in overlapping windows where it is long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flodl.core import HFError

from ..text.windows import read_windows
from .results import Answer
from .runner import CHUNK, Rows, Runner, as_list, check_top_k, to_float

if TYPE_CHECKING:
    from tokenizers import Encoding


@dataclass(frozen=True)
class Window:
    """A part of a context: its encoding, and the logits of its tokens."""

    encoding: Encoding
    start_logits: np.ndarray[Any, Any]
    end_logits: np.ndarray[Any, Any]
    cls_index: int = 0


def answer_questions(
    runner: Runner,
    question: str | Sequence[str],
    context: str | Sequence[str],
    *,
    top_k: int | None = None,
    max_answer_len: int = 30,
    max_seq_len: int = 384,
    doc_stride: int = 128,
    handle_impossible_answer: bool = False,
    align_to_words: bool = False,
) -> Any:
    """Answer one question, or a list of questions with a context each (or one context for all).

    Returns an `Answer` per question, or with `top_k` a list of the best ones. A context that does not fit
    into `max_seq_len` tokens is read in windows that overlap by `doc_stride` tokens. With
    `handle_impossible_answer`, an empty answer is returned where it is the most probable.
    """
    _check(top_k, max_answer_len)
    questions, single = as_list(question, "question")
    contexts, one_context = as_list(context, "context")
    if one_context:
        contexts = contexts * len(questions)
    elif single:
        raise HFError(
            "question is a string but context is a list. Pass a list of questions, one per context."
        )
    if len(questions) != len(contexts):
        raise HFError(
            f"there are {len(questions)} questions and {len(contexts)} contexts; expected one for each."
        )
    found: list[Any] = []
    for start in range(0, len(questions), CHUNK):
        part = slice(start, start + CHUNK)
        windows = _run(runner, questions[part], contexts[part], max_seq_len, doc_stride)
        for text, group in zip(contexts[part], windows):
            answers = best_answers(
                text,
                group,
                top_k=1 if top_k is None else top_k,
                max_answer_len=max_answer_len,
                handle_impossible_answer=handle_impossible_answer,
                align_to_words=align_to_words,
            )
            found.append(answers[0] if top_k is None else answers)
    return found[0] if single else found


def best_answers(
    context: str,
    windows: Sequence[Window],
    *,
    top_k: int = 1,
    max_answer_len: int = 30,
    handle_impossible_answer: bool = False,
    align_to_words: bool = False,
) -> list[Answer]:
    """Return the best spans of all windows of a context, the most probable first.

    The score of a span is the probability of its start times that of its end, among the tokens of the context
    and the first token of the sequence, which stands for "no answer". A span that several windows contain
    counts once, with its highest score.
    """
    scores: dict[tuple[int, int], float] = {}
    no_answer = 1.0
    for window in windows:
        start, end, null = _probabilities(window)
        no_answer = min(no_answer, null)
        # Some candidates are the same once they are trimmed or extended to words.
        mine: dict[tuple[int, int], float] = {}
        for first, last, score in _spans(start, end, max_answer_len, count=2 * top_k + 10):
            span = _characters(context, window.encoding, first, last, align_to_words=align_to_words)
            mine[span] = mine.get(span, 0.0) + score
        for span, score in mine.items():
            scores[span] = max(scores.get(span, 0.0), score)
    answers = [
        Answer(context[first:last], score, first, last, no_answer)
        for (first, last), score in scores.items()
        if first < last
    ]
    if handle_impossible_answer or not answers:
        answers.append(Answer("", no_answer, 0, 0, no_answer))
    return sorted(answers, key=lambda item: -item.score)[:top_k]


def _run(
    runner: Runner, questions: Sequence[str], contexts: Sequence[str], max_seq_len: int, doc_stride: int
) -> list[list[Window]]:
    tokenizer = runner.tokenizer
    groups = read_windows(tokenizer, questions, contexts, max_length=max_seq_len, stride=doc_stride)

    def interpret(rows: Rows) -> list[Window]:
        start, end = (to_float(values) for values in rows.output)
        cls = tokenizer.special.cls.id
        return [
            Window(item, rows.real(row, start[row]), rows.real(row, end[row]), _index(item.ids, cls))
            for row, item in enumerate(rows.encodings)
        ]

    flat = iter(runner.run([window for group in groups for window in group], interpret))
    return [[next(flat) for _ in group] for group in groups]


def _index(ids: list[int], wanted: int | None) -> int:
    return ids.index(wanted) if wanted in ids else 0


def _probabilities(
    window: Window,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], float]:
    """Return the probabilities of starts and ends in the context, and that of no answer."""
    context = np.array([sequence == 1 for sequence in window.encoding.sequence_ids])
    allowed = context.copy()
    allowed[window.cls_index] = True

    def softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        shifted = np.where(allowed, logits, -np.inf)
        values = np.exp(shifted - shifted.max())
        return np.asarray(values / values.sum())

    start, end = softmax(window.start_logits), softmax(window.end_logits)
    null = float(start[window.cls_index] * end[window.cls_index])
    return np.where(context, start, 0.0), np.where(context, end, 0.0), null


def _spans(
    start: np.ndarray[Any, Any], end: np.ndarray[Any, Any], max_answer_len: int, *, count: int
) -> list[tuple[int, int, float]]:
    """Return the best pairs of a start and an end that is not before it."""
    length = len(start)
    width = min(max_answer_len, length)
    # Row i, column d: the span from i to i + d.
    ends = np.concatenate([end, np.zeros(width, end.dtype)])
    scores = start[:, None] * np.lib.stride_tricks.sliding_window_view(ends, width)[:length]
    flat = scores.ravel()
    best = np.argpartition(-flat, count)[:count] if count < flat.size else np.arange(flat.size)
    best = best[np.lexsort((best, -flat[best]))]
    return [
        (int(index // width), int(index // width + index % width), float(flat[index]))
        for index in best
        if flat[index] > 0
    ]


def _characters(
    context: str, encoding: Encoding, first: int, last: int, *, align_to_words: bool
) -> tuple[int, int]:
    """Return the characters of a span of tokens, without white space around them."""
    start, end = encoding.offsets[first][0], encoding.offsets[last][1]
    if align_to_words:
        words = encoding.token_to_word(first), encoding.token_to_word(last)
        spans = [None if word is None else encoding.word_to_chars(word, 1) for word in words]
        if spans[0] is not None and spans[1] is not None:
            start, end = spans[0][0], spans[1][1]
    while start < end and context[start].isspace():
        start += 1
    while start < end and context[end - 1].isspace():
        end -= 1
    return start, end


def _check(top_k: int | None, max_answer_len: int) -> None:
    if top_k is not None:
        check_top_k(top_k)
    if max_answer_len < 1:
        raise HFError(f"max_answer_len is {max_answer_len}; expected at least 1.")

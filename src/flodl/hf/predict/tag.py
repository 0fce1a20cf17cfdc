"""Token classification: a label per token, or entities with character offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from flodl.core import HFError, log

from ..text.tokenizer import Tokenizer
from .entities import Tagged, group, merge_words, without_overlaps
from .results import Entity, TaggedToken
from .runner import CHUNK, Rows, Runner, as_list, to_float

if TYPE_CHECKING:
    from tokenizers import Encoding

Strategy = Literal["none", "simple", "first", "average", "max"]


@dataclass(frozen=True)
class _Text:
    """A text, and where its words start if it was split into words."""

    text: str
    words: tuple[int, ...] | None = None


def tag_texts(
    runner: Runner,
    texts: str | Sequence[str] | Sequence[Sequence[str]],
    *,
    labels: Sequence[str],
    aggregation_strategy: Strategy = "simple",
    ignore_labels: Sequence[str] = ("O",),
    stride: int | None = None,
    max_length: int | None = None,
    is_split_into_words: bool = False,
) -> list[Any]:
    """Return the entities of a text, or one list of entities per text.

    The strategies are those of transformers: `"none"` returns tokens, `"simple"` joins neighboring tokens of
    the same label, and `"first"`, `"average"` and `"max"` first decide on one label per word. With a
    `stride`, long texts are read in windows that overlap by this number of tokens; without one, the rest of
    a long text is ignored, with a warning. Offsets of lists of words
    refer to the words joined with spaces.
    """
    _check(aggregation_strategy, stride)
    if isinstance(ignore_labels, str):
        ignore_labels = (ignore_labels,)
    if is_split_into_words:
        if isinstance(texts, str):
            raise HFError("texts is a str, but is_split_into_words=True; expected a list of words.")
        single = bool(texts) and all(isinstance(word, str) for word in texts)
        given: list[Any] = [list(texts)] if single else list(texts)
    else:
        given, single = as_list(texts)
    found: list[Any] = []
    truncated = 0
    for start in range(0, len(given), CHUNK):
        part = given[start : start + CHUNK]
        encodings = runner.tokenizer.encode(
            part, max_length=max_length, stride=stride, split_into_words=is_split_into_words
        )
        windows = [[item, *item.overflowing] if stride is not None else [item] for item in encodings]
        truncated += 0 if stride is not None else sum(1 for item in encodings if item.overflowing)
        flat = [(index, window) for index, group in enumerate(windows) for window in group]
        scores = runner.run([window for _, window in flat], _scores)
        sources = [_source(item) for item in part]
        pieces: list[list[Any]] = [[] for _ in part]
        for (index, window), values in zip(flat, scores):
            _check_width(values, labels)
            tokens = read_tokens(runner.tokenizer, sources[index].text, window, values, sources[index].words)
            pieces[index] += aggregate(
                runner.tokenizer, sources[index].text, tokens, labels, aggregation_strategy, ignore_labels
            )
        found += [
            without_overlaps(items) if len(group) > 1 else items for items, group in zip(pieces, windows)
        ]
    if truncated:
        log.warn(
            f"{truncated} of {len(given)} texts are longer than the model's maximum; the rest of each is "
            "ignored. Pass stride=64 to read all of it"
        )
    return found[0] if single else found


def read_tokens(
    tokenizer: Tokenizer,
    text: str,
    encoding: Encoding,
    scores: np.ndarray[Any, Any],
    words: Sequence[int] | None = None,
) -> list[Tagged]:
    """Return the tokens of a text with their scores, without special tokens."""
    found = []
    ids, offsets, special = encoding.ids, encoding.offsets, encoding.special_tokens_mask
    word_ids = encoding.word_ids if words is not None else None
    for index, row in enumerate(scores):
        if special[index]:
            continue
        start, end = offsets[index]
        if words is not None and word_ids is not None and (word := word_ids[index]) is not None:
            start, end = start + words[word], end + words[word]
        token = tokenizer.token(ids[index])
        if tokenizer.marks_continuations:
            continues = len(token) != end - start
        else:
            continues = start > 0 and " " not in text[start - 1 : start + 1]
        if ids[index] == tokenizer.special.unk.id:
            token, continues = text[start:end], False
        found.append(Tagged(token, row, start, end, index, continues))
    return found


def aggregate(
    tokenizer: Tokenizer,
    text: str,
    tokens: Sequence[Tagged],
    labels: Sequence[str],
    strategy: Strategy,
    ignore_labels: Sequence[str] = ("O",),
) -> list[Any]:
    """Turn the tokens of one window into tokens or entities."""
    if strategy == "none":
        return [
            TaggedToken(
                labels[token.best], float(token.scores.max()), token.word, token.start, token.end, token.index
            )
            for token in tokens
            if labels[token.best] not in ignore_labels
        ]
    if strategy != "simple":
        tokens = merge_words(tokens, strategy, tokenizer.join)
    return [
        Entity(item.label, item.score, item.word, item.start, item.end, text[item.start : item.end])
        for item in group(tokens, labels, tokenizer.join)
        if item.label not in ignore_labels
    ]


def _scores(rows: Rows) -> list[np.ndarray[Any, Any]]:
    logits = to_float(rows.output)
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    scores = shifted / shifted.sum(axis=-1, keepdims=True)
    return [rows.real(row, scores[row]) for row in range(len(scores))]


def _source(item: Any) -> _Text:
    if isinstance(item, str):
        return _Text(item)
    starts, at = [], 0
    for word in item:
        starts.append(at)
        at += len(word) + 1
    return _Text(" ".join(item), tuple(starts))


def _check(strategy: str, stride: int | None) -> None:
    if strategy not in get_args(Strategy):
        raise HFError(
            f"aggregation_strategy is {strategy!r}; expected one of {', '.join(get_args(Strategy))}."
        )
    if strategy == "none" and stride is not None:
        raise HFError(
            "aggregation_strategy='none' cannot be used with a stride, because windows repeat tokens. "
            "Use 'simple', or leave out the stride."
        )


def _check_width(scores: np.ndarray[Any, Any], labels: Sequence[str]) -> None:
    if scores.shape[-1] != len(labels):
        raise HFError(
            f"the model returns {scores.shape[-1]} logits per token for {len(labels)} labels; "
            "expected one for each."
        )

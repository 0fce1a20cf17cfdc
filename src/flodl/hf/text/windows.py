"""Questions with long contexts, read in overlapping windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flodl.core import HFError

from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding


def read_windows(
    tokenizer: Tokenizer,
    questions: Sequence[str],
    contexts: Sequence[str],
    *,
    max_length: int,
    stride: int,
) -> list[list[Encoding]]:
    """Return the windows of each context, with the question in front; they overlap by `stride` tokens."""
    limit = max_length if tokenizer.max_length is None else min(max_length, tokenizer.max_length)
    specials = tokenizer.backend.num_special_tokens_to_add(True)
    encoded = tokenizer.encode(questions, special_tokens=False, offsets=False)
    lengths = [len(item) + sum(map(len, item.overflowing)) for item in encoded]
    # A long question leaves less room, so it may need a smaller stride; that of the others stays the same.
    by_stride: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        room = limit - specials - length
        if room < 2:
            raise HFError(
                f"question {index} has {length} tokens, which leaves no room for the context: a window has "
                f"{limit} tokens, {specials} of them special. Shorten the question, or increase max_seq_len."
            )
        by_stride.setdefault(min(stride, room // 2), []).append(index)
    groups: list[list[Encoding]] = [[] for _ in questions]
    for chosen, indices in by_stride.items():
        encodings = tokenizer.encode(
            [questions[index] for index in indices],
            [contexts[index] for index in indices],
            max_length=limit,
            truncation="only_second",
            stride=chosen,
        )
        for index, item in zip(indices, encodings):
            groups[index] = [item, *item.overflowing]
    return groups

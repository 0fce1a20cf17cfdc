"""The tokens of many texts in flat arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flodl.core import log

from ..text.progress import progress_bar

if TYPE_CHECKING:
    from tokenizers import Encoding

Array = np.ndarray[Any, Any]

# Texts that are encoded in one call of the library, which uses all cores.
CHUNK = 8192


@dataclass(frozen=True)
class Tokens:
    """Token ids of all texts one after the other; text i is `ids[offsets[i]:offsets[i + 1]]`.

    >>> tokens = Tokens.joined([np.array([2, 7, 3]), np.array([2, 3])])
    >>> tokens.ids, tokens.lengths, tokens.row(1)
    (array([2, 7, 3, 2, 3], dtype=int32), array([3, 2]), array([2, 3], dtype=int32))
    """

    ids: Array
    offsets: Array
    # Token types, where a text has a second part.
    types: Array | None = None

    @classmethod
    def joined(cls, rows: Sequence[Array], types: Sequence[Array] | None = None) -> Tokens:
        """Join the tokens of texts."""
        lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
        return cls(
            flat(rows, np.int32),
            np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
            None if types is None else flat(types, np.uint8),
        )

    @property
    def lengths(self) -> Array:
        """The number of tokens of each text, special tokens included."""
        return np.diff(self.offsets)

    @property
    def num_bytes(self) -> int:
        """The size of the arrays."""
        return int(self.ids.nbytes + self.offsets.nbytes + (0 if self.types is None else self.types.nbytes))

    def row(self, index: int) -> Array:
        """Return the ids of one text."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1


def flat(rows: Sequence[Array], dtype: Any) -> Array:
    """Join arrays; without any, return an empty one."""
    return np.concatenate([np.zeros(0, dtype), *(np.asarray(row, dtype) for row in rows)], dtype=dtype)


def encoded(
    texts: Sequence[Any],
    pairs: Sequence[Any] | None = None,
    *,
    progress: bool | None = None,
    encode: Callable[[Sequence[Any], Sequence[Any] | None], list[Encoding]],
) -> Iterator[Encoding]:
    """Yield the encoding of each text; long lists show a progress bar."""
    with progress_bar(len(texts), show=progress, title="tokenize") as advance:
        for start in range(0, len(texts), CHUNK):
            part = slice(start, start + CHUNK)
            chunk = texts[part]
            yield from encode(chunk, None if pairs is None else pairs[part])
            advance(len(chunk))


def collect(encodings: Iterable[Encoding], *, types: bool) -> Tokens:
    """Store the ids of encodings, and token types if the model uses them."""
    ids: list[Array] = []
    kinds: list[Array] = []
    for encoding in encodings:
        ids.append(np.asarray(encoding.ids, np.int32))
        if types:
            kinds.append(np.asarray(encoding.type_ids, np.uint8))
    return Tokens.joined(ids, kinds if types else None)


def warn_about_empty(tokens: Tokens, num_special: int) -> None:
    """Warn if texts have no tokens besides the special ones."""
    empty = np.flatnonzero(tokens.lengths <= num_special)
    if len(empty):
        log.warn(f"{len(empty)} of {len(tokens)} texts are empty, the first of them text {empty[0]}")


class Truncated:
    """Counts texts that are longer than the limit, and warns once about all of them."""

    def __init__(self, limit: int | None) -> None:
        self.limit, self.count, self.total = limit, 0, 0

    def watch(self, encodings: Iterable[Encoding]) -> Iterator[Encoding]:
        """Yield the encodings, and count those that were cut."""
        for encoding in encodings:
            self.total += 1
            self.count += bool(encoding.overflowing)
            yield encoding

    def warn(self, advice: str = "") -> None:
        """Warn if texts were cut."""
        if self.count:
            log.warn(
                f"{self.count} of {self.total} texts are longer than {self.limit} tokens; the rest of each "
                f"is ignored{advice}"
            )

"""Tiny Shakespeare: a megabyte of plays, as characters."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from flodl.core.errors import DataError, DataFileError
from flodl.core.usage.calls import DataCallError, explain_calls

from ..sources import TokenShards
from .published_files import ELSEWHERE, PublishedFile, find_folders, read_published

_FILE = PublishedFile(
    "input.txt",
    ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
    1_115_394,
    "6fb458f1232090904fb40fe944165e91",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
_PARTS = {"all": (0.0, 1.0), "train": (0.0, 0.9), "validation": (0.9, 1.0)}


class Characters(TokenShards):
    """Windows over a text with one token per character; `encode` and `decode` convert text and tokens.

    >>> text = Characters("hello", seq_len=2)
    >>> text.vocabulary, text[0][0].tolist(), text.decode(text[0][1])
    ('ehlo', [1, 0], 'el')
    """

    def __init__(
        self, text: str, seq_len: int, *, stride: int | None = None, vocabulary: str | None = None
    ) -> None:
        self.vocabulary = vocabulary or "".join(sorted(set(text)))
        self._number_of = {character: number for number, character in enumerate(self.vocabulary)}
        super().__init__(self.encode(text).to(torch.int32), seq_len, stride=stride)

    def encode(self, text: str) -> Tensor:
        """Return the tokens of a text.

        >>> Characters("hello", 2).encode("hole").tolist()
        [1, 3, 2, 0]
        """
        unknown = sorted(set(text) - set(self._number_of))
        if unknown:
            raise DataError(f"the text has {unknown[0]!r}, which is not in the vocabulary. Remove it first.")
        return torch.from_numpy(
            np.fromiter((self._number_of[c] for c in text), dtype=np.int64, count=len(text))
        )

    def decode(self, tokens: Tensor) -> str:
        """Return the text of a sequence of tokens."""
        return "".join(self.vocabulary[number] for number in tokens.tolist())


@explain_calls(DataCallError, elsewhere=ELSEWHERE)
def tiny_shakespeare(
    root: str | os.PathLike[str] | None = None,
    seq_len: int = 128,
    *,
    stride: int | None = None,
    split: str = "all",
    download: bool = False,
    verify: bool = True,
    mirror: str | None = None,
) -> Characters:
    """Return windows of `seq_len` characters and the same windows shifted by one, ready for a `Loader`.

    `split` is "all", "train" (the first nine tenths) or "validation". The text is the file `input.txt` in
    `root` (or `$FLODL_DATA`, or `~/.cache/flodl/data`) or its folders `tinyshakespeare` and
    `tiny_shakespeare`.
    """
    if split not in _PARTS:
        raise DataError(f"split={split!r}. Pass one of {', '.join(map(repr, _PARTS))}.")
    folders = find_folders(root, "tinyshakespeare", "tiny_shakespeare")
    content, path = read_published(
        _FILE, folders, fetch=download, mirror=mirror, verify=verify, call="flodl.data.tiny_shakespeare"
    )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataFileError(f"{path} is not text: {error.reason} at byte {error.start}.") from None
    low, high = (round(len(text) * share) for share in _PARTS[split])
    return Characters(text[low:high], seq_len, stride=stride, vocabulary="".join(sorted(set(text))))

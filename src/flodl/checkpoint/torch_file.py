"""Files of `torch.save`, read without running anything that is in them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from typing import IO, Any

import torch
from torch import Tensor

ZIP_MAGIC = b"PK"
LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9c"


def read(source: str | os.PathLike[str] | IO[bytes]) -> dict[str, Tensor]:
    """Give every tensor in the file; tables inside tables become dotted names, other values are left out."""
    mapped = isinstance(source, str | os.PathLike)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about protocols, which the user cannot change
            content = torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        # A changed file makes the reader raise anything at all; its advice to switch safety off is left out.
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ValueError(f"torch cannot read it safely ({reason})") from error
    if not isinstance(content, Mapping):
        raise ValueError(f"it holds a {type(content).__name__}, not a table of tensors")
    return dict(_flattened(content, ""))


def _flattened(table: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Tensor]]:
    for key, value in table.items():
        if isinstance(value, Tensor):
            yield f"{prefix}{key}", value.detach()
        elif isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")

"""A hash of the contents of a tensor or an array; of parts of it if it is large."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

# Everything up to this size is hashed, and NUM_BLOCKS blocks of what is larger.
MAX_BYTES = 1 << 20
NUM_BLOCKS = 64
BLOCK = 1024


def content_hash(value: Any, *, max_bytes: int = MAX_BYTES) -> str:
    """Return a hash of a tensor or an array: of all bytes, or of 64 parts if it has more than `max_bytes`.

    >>> import numpy
    >>> content_hash(numpy.arange(3)) == content_hash(numpy.arange(3)) != content_hash(numpy.arange(4))
    True
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        content = _tensor_bytes(torch, value.detach(), max_bytes)
    else:
        content = _array_bytes(value, max_bytes)
    return hashlib.sha256(content).hexdigest()[:12]


def _tensor_bytes(torch: Any, value: Any, max_bytes: int) -> bytes:
    value = value.resolve_conj().resolve_neg()
    if value.numel() * value.element_size() > max_bytes:
        value = torch.cat([part.reshape(-1) for part in _blocks(value, value.is_contiguous())])
    content: bytes = value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return content


def _array_bytes(value: Any, max_bytes: int) -> bytes:
    if value.nbytes <= max_bytes:
        return bytes(value.tobytes())
    return b"".join(part.tobytes() for part in _blocks(value, value.flags.c_contiguous))


def _blocks(value: Any, is_contiguous: bool) -> list[Any]:
    """Return short pieces of a large array from its start to its end, without a copy of the whole."""
    if is_contiguous:
        flat = value.reshape(-1)
        return [flat[start : start + BLOCK] for start in block_starts(max(0, len(flat) - BLOCK))]
    return [value[row].reshape(-1)[:BLOCK] for row in block_starts(len(value) - 1)]


def block_starts(last: int) -> list[int]:
    """Return where the 64 parts of something large start, from 0 to `last`.

    >>> block_starts(630)[:3], block_starts(630)[-1]
    ([0, 10, 20], 630)
    """
    return [last * number // (NUM_BLOCKS - 1) for number in range(NUM_BLOCKS)]

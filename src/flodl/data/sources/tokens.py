"""Windows over long rows of tokens, in memory or mapped from files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flodl.core.errors import DataError, DataFileError
from flodl.core.files import expand_user

Shard = str | os.PathLike[str] | Tensor | np.ndarray[Any, Any]


class TokenShards:
    """Windows of `seq_len` tokens and the same windows one token later, from one or many shards.

    A shard is a file of raw numbers (of `dtype`, behind `header_bytes`), an `.npy` file, a tensor or an
    array. Files are mapped, not read. A window never crosses from one shard into the next; `stride` is the
    distance between windows, `seq_len` unless given. Tokens behind the last whole window of a shard are
    left out.

    >>> windows = TokenShards(torch.arange(10), seq_len=4)
    >>> len(windows), windows[1]
    (2, (tensor([4, 5, 6, 7]), tensor([5, 6, 7, 8])))
    """

    def __init__(
        self,
        shards: Shard | Sequence[Shard],
        seq_len: int,
        *,
        stride: int | None = None,
        dtype: str = "uint16",
        header_bytes: int = 0,
    ) -> None:
        if seq_len < 1 or (stride is not None and stride < 1):
            raise DataError(f"TokenShards: seq_len={seq_len}, stride={stride}. Give whole numbers from 1 up.")
        self.seq_len, self.stride = seq_len, stride or seq_len
        listed: list[Any] = list(shards) if isinstance(shards, (list, tuple)) else [shards]
        if not listed:
            raise DataError("TokenShards: no shards. Give at least one file, tensor or array.")
        self.shards = [_opened(shard, np.dtype(dtype), header_bytes) for shard in listed]
        counts = [max(0, (len(shard) - 1 - seq_len) // self.stride + 1) for shard in self.shards]
        self.num_samples = sum(counts)
        if self.num_samples == 0:
            longest = max(len(shard) for shard in self.shards)
            raise DataError(
                f"TokenShards: no shard has the {seq_len + 1} tokens of a window; the longest has {longest}. "
                "Give a smaller seq_len or more text."
            )
        self.num_tokens = sum(len(shard) for shard in self.shards)
        self.num_bytes = self.num_tokens * _kept_as(self.shards).itemsize  # as on a device
        # The first window of each shard, and behind them the end.
        self._ends = torch.tensor(counts).cumsum(0)

    @property
    def mapped(self) -> bool:
        """Whether the tokens lie in files that are read as needed."""
        return any(isinstance(shard, np.memmap) for shard in self.shards)

    @property
    def device(self) -> torch.device:
        """Where the windows are cut."""
        return torch.device("cpu")

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Give these windows as a batch (inputs, targets)."""
        shard_of = torch.searchsorted(self._ends, indices, right=True).tolist()
        windows = np.empty((len(shard_of), self.seq_len + 1), dtype=np.int64)
        for row, (index, number) in enumerate(zip(indices.tolist(), shard_of)):
            before = int(self._ends[number - 1]) if number else 0
            start = (index - before) * self.stride
            windows[row] = self.shards[number][start : start + self.seq_len + 1]
        both = torch.from_numpy(windows)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    def to(self, device: torch.device) -> _DeviceWindows:
        """Give the same windows over tokens in the memory of a device."""
        lengths = torch.tensor([0, *(len(shard) for shard in self.shards[:-1])])
        firsts = torch.cat([torch.zeros(1, dtype=torch.int64), self._ends[:-1]])
        # Where the first window of all would begin, if the windows of a shard went on before it.
        origins = lengths.cumsum(0) - firsts * self.stride
        tokens = torch.from_numpy(_joined(self.shards)).to(device)
        return _DeviceWindows(tokens, self._ends.to(device), origins.to(device), self.seq_len, self.stride)

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -self.num_samples <= index < self.num_samples:
            raise IndexError(f"window {index} of {self.num_samples}")
        x, y = self.take(torch.tensor([index % self.num_samples]))
        return x[0], y[0]


class _DeviceWindows:
    """Windows that are cut on the device.

    Of each shard it has the number behind its last window, and the place to count its windows from. A table
    of all windows could be larger than the tokens.
    """

    def __init__(self, tokens: Tensor, ends: Tensor, origins: Tensor, seq_len: int, stride: int) -> None:
        self._tokens, self._ends, self._origins, self._stride = tokens, ends, origins, stride
        self._offsets = torch.arange(seq_len + 1, device=tokens.device)
        self.num_samples = int(ends[-1])
        self.num_bytes = int(tokens.nbytes)
        self.device = tokens.device
        self.mapped = False

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        starts = indices * self._stride
        if len(self._ends) > 1:
            shard_of = torch.searchsorted(self._ends, indices, right=True)
            starts += self._origins.index_select(0, shard_of)
        places = starts[:, None] + self._offsets
        found = self._tokens.index_select(0, places.view(-1)).view(places.shape)
        if found.dtype == torch.int16:
            both = found.to(torch.int64) & 0xFFFF  # what was stored as uint16
        else:
            both = found.to(torch.int64)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    def to(self, device: torch.device) -> _DeviceWindows:
        tokens, ends, origins = (part.to(device) for part in (self._tokens, self._ends, self._origins))
        return _DeviceWindows(tokens, ends, origins, len(self._offsets) - 1, self._stride)


def _kept_as(shards: Sequence[np.ndarray[Any, Any]]) -> np.dtype[Any]:
    """Give the type of all tokens together; torch can gather them on any device, uint16 as int16."""
    kinds = {shard.dtype for shard in shards}
    kept = {np.dtype(kind) for kind in ("uint8", "int8", "uint16", "int32", "int64")}
    return kinds.pop() if len(kinds) == 1 and kinds <= kept else np.dtype(np.int64)


def _joined(shards: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Give all tokens in one array."""
    kind = _kept_as(shards)
    joined = np.concatenate([shard.astype(kind, copy=False) for shard in shards])
    return joined.view(np.int16) if kind == np.uint16 else joined


def _opened(shard: Shard, dtype: np.dtype[Any], header_bytes: int) -> np.ndarray[Any, Any]:
    if isinstance(shard, (str, os.PathLike)):
        array = _mapped(expand_user(shard), dtype, header_bytes)
    else:
        array = shard.cpu().numpy() if isinstance(shard, Tensor) else shard
    if array.ndim != 1 or array.dtype.kind not in "iu":
        name = shard if isinstance(shard, (str, os.PathLike)) else "a shard"
        raise DataError(
            f"{name} has shape {array.shape} and dtype {array.dtype}. Give one row of whole numbers."
        )
    return array


def _mapped(path: Path, dtype: np.dtype[Any], header_bytes: int) -> np.ndarray[Any, Any]:
    if not path.is_file():
        raise DataFileError(f"there is no token file {path}. Give the path of a file of {dtype} numbers.")
    if path.suffix == ".npy":
        try:
            array: np.ndarray[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise DataFileError(f"{path} is not a readable .npy file: {error}.") from None
        return array
    body = path.stat().st_size - header_bytes
    if body <= 0 or body % dtype.itemsize:
        raise DataFileError(
            f"{path} has {path.stat().st_size} bytes, of which {header_bytes} are header: not a whole number "
            f"of {dtype} tokens. Check dtype= and header_bytes=, or whether the file is complete."
        )
    return np.memmap(path, dtype=dtype, mode="r", offset=header_bytes)

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
from flodl.core.files import at_home

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
        self.num_bytes = sum(int(shard.nbytes) for shard in self.shards)
        self.num_tokens = sum(len(shard) for shard in self.shards)
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
        counts = torch.diff(self._ends, prepend=torch.zeros(1, dtype=torch.int64))
        lengths = torch.tensor([len(shard) for shard in self.shards])
        begins = lengths.cumsum(0) - lengths
        firsts = self._ends - counts
        starts = (
            begins.repeat_interleave(counts)
            + (torch.arange(self.num_samples) - firsts.repeat_interleave(counts)) * self.stride
        )
        tokens = torch.from_numpy(_joined(self.shards))
        return _DeviceWindows(tokens.to(device), starts.to(device), self.seq_len)

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -self.num_samples <= index < self.num_samples:
            raise IndexError(f"window {index} of {self.num_samples}")
        x, y = self.take(torch.tensor([index % self.num_samples]))
        return x[0], y[0]


class _DeviceWindows:
    """Windows that are cut on the device."""

    def __init__(self, tokens: Tensor, starts: Tensor, seq_len: int) -> None:
        self._tokens, self._starts = tokens, starts
        self._offsets = torch.arange(seq_len + 1, device=tokens.device)
        self.num_samples = len(starts)
        self.num_bytes = int(tokens.nbytes + starts.nbytes)
        self.device = tokens.device
        self.mapped = False

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        places = self._starts.index_select(0, indices)[:, None] + self._offsets
        found = self._tokens.index_select(0, places.view(-1)).view(places.shape)
        if found.dtype == torch.int16:
            both = found.to(torch.int64) & 0xFFFF  # what was stored as uint16
        else:
            both = found.to(torch.int64)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    def to(self, device: torch.device) -> _DeviceWindows:
        return _DeviceWindows(self._tokens.to(device), self._starts.to(device), len(self._offsets) - 1)


def _joined(shards: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Give all tokens in one array that torch can gather from on any device."""
    kinds = {shard.dtype for shard in shards}
    if kinds == {np.dtype(np.uint16)}:
        return np.concatenate(shards).view(np.int16)
    if kinds <= {np.dtype(kind) for kind in ("uint8", "int8", "int32", "int64")} and len(kinds) == 1:
        return np.concatenate(shards)
    return np.concatenate([shard.astype(np.int64) for shard in shards])


def _opened(shard: Shard, dtype: np.dtype[Any], header_bytes: int) -> np.ndarray[Any, Any]:
    if isinstance(shard, (str, os.PathLike)):
        array = _mapped(at_home(shard), dtype, header_bytes)
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

"""Windows over long sequences of tokens, in memory or memory-mapped."""

from __future__ import annotations

import codecs
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flodl.core import log
from flodl.core.errors import DataError, DataFileError
from flodl.core.files import expand_user
from flodl.core.formats import a_type
from flodl.core.integers import as_integer, is_integer

# How many tokens of a file are looked at, at least and at most, and an id above those of a vocabulary.
_FEWEST_CHECKED, _NUM_CHECKED = 64, 4096
_LARGEST_ID = 1 << 21
_ORDINALS = {2: "second", 4: "fourth"}
# How many tokens are compared with the embeddings of a model.
_NUM_COMPARED = 1 << 20

Shard = str | os.PathLike[str] | Tensor | np.ndarray[Any, Any]


class TokenShards:
    """Windows of `seq_len` tokens and the same windows shifted by one token, from one or more shards.

    A shard is a file of raw integers (of `dtype`, after `header_bytes`), an `.npy` file, a tensor or an
    array. Files are memory-mapped. A window never crosses shards; `stride` is the distance between windows,
    by default `seq_len`. Tokens after the last complete window of a shard are dropped.

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
        seq_len, stride, header_bytes = as_integer(seq_len), as_integer(stride), as_integer(header_bytes)
        if not is_integer(seq_len, at_least=1) or not (stride is None or is_integer(stride, at_least=1)):
            raise DataError(f"TokenShards: seq_len={seq_len!r}, stride={stride!r}. Pass integers >= 1.")
        if not is_integer(header_bytes, at_least=0):
            raise DataError(
                f"TokenShards: header_bytes={header_bytes!r}. Pass the size of the header, an integer >= 0."
            )
        self.seq_len, self.stride = seq_len, seq_len if stride is None else stride
        listed: list[Any] = list(shards) if isinstance(shards, (list, tuple)) else [shards]
        if not listed:
            raise DataError("TokenShards: no shards. Pass at least one file, tensor or array.")
        tokens_dtype = _dtype_of_tokens(dtype)
        self.shards = [_open_shard(shard, tokens_dtype, header_bytes) for shard in listed]
        counts = [max(0, (len(shard) - 1 - seq_len) // self.stride + 1) for shard in self.shards]
        self.num_samples = sum(counts)
        if self.num_samples == 0:
            longest = max(len(shard) for shard in self.shards)
            raise DataError(
                f"TokenShards: no shard has the {seq_len + 1} tokens of a window; the longest has {longest}. "
                "Use a smaller seq_len or more text."
            )
        self.num_tokens = sum(len(shard) for shard in self.shards)
        self.num_bytes = self.num_tokens * _common_dtype(self.shards).itemsize  # as on a device
        # The index after the last window of each shard.
        self._ends = torch.tensor(counts).cumsum(0)

    @property
    def mapped(self) -> bool:
        """Whether tokens are memory-mapped."""
        return any(isinstance(shard, np.memmap) for shard in self.shards)

    @property
    def device(self) -> torch.device:
        """The device on which `take` works."""
        return torch.device("cpu")

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return these windows as a batch (inputs, targets)."""
        shard_of = torch.searchsorted(self._ends, indices, right=True).tolist()
        windows = np.empty((len(shard_of), self.seq_len + 1), dtype=np.int64)
        for row, (index, number) in enumerate(zip(indices.tolist(), shard_of)):
            before = int(self._ends[number - 1]) if number else 0
            start = (index - before) * self.stride
            windows[row] = self.shards[number][start : start + self.seq_len + 1]
        both = torch.from_numpy(windows)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    def to(self, device: torch.device) -> _DeviceWindows:
        """Return the same windows over tokens in the memory of a device."""
        lengths = torch.tensor([0, *(len(shard) for shard in self.shards[:-1])])
        firsts = torch.cat([torch.zeros(1, dtype=torch.int64), self._ends[:-1]])
        # Where window 0 would start if the windows of the shard continued to the left.
        origins = lengths.cumsum(0) - firsts * self.stride
        tokens = torch.from_numpy(_concatenate(self.shards)).to(device)
        return _DeviceWindows(tokens, self._ends.to(device), origins.to(device), self.seq_len, self.stride)

    def check_model(self, model: nn.Module) -> None:
        """Warn if there are ids that no embedding of a model has, among the first tokens of each shard."""
        sizes = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
        largest = max(int(shard[:_NUM_COMPARED].max()) for shard in self.shards)
        if sizes and largest >= max(sizes):
            log.warn(
                "TokenShards has the id %d, and the largest embedding of the model has %d rows. Check the "
                "vocabulary of the model, and the dtype of the files.",
                largest,
                max(sizes),
            )

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -self.num_samples <= index < self.num_samples:
            raise IndexError(f"window {index} of {self.num_samples}")
        x, y = self.take(torch.tensor([index % self.num_samples]))
        return x[0], y[0]


class _DeviceWindows:
    """Windows that are gathered on the device.

    For each shard, it stores the index after its last window and the origin to count its windows from. A
    table of all windows could be larger than the tokens.
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
        indices = starts[:, None] + self._offsets
        tokens = self._tokens.index_select(0, indices.view(-1)).view(indices.shape)
        if tokens.dtype == torch.int16:
            both = tokens.to(torch.int64) & 0xFFFF  # stored as uint16
        else:
            both = tokens.to(torch.int64)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    def to(self, device: torch.device) -> _DeviceWindows:
        tokens, ends, origins = (part.to(device) for part in (self._tokens, self._ends, self._origins))
        return _DeviceWindows(tokens, ends, origins, len(self._offsets) - 1, self._stride)


def _dtype_of_tokens(name: Any) -> np.dtype[Any]:
    """Return the type of the tokens in a file, or raise."""
    try:
        dtype: np.dtype[Any] | None = np.dtype(name)
    except (TypeError, ValueError):
        dtype = None
    if name is None or dtype is None or dtype.kind not in "iu":
        raise DataError(
            f"TokenShards: dtype={name!r}. Pass the type of the integers in the file: 'uint16', 'int32' or "
            "another one of NumPy."
        )
    return dtype


def _common_dtype(shards: Sequence[np.ndarray[Any, Any]]) -> np.dtype[Any]:
    """Return a type for all tokens that torch can gather on any device (uint16 viewed as int16)."""
    dtypes = {shard.dtype for shard in shards}
    supported = {np.dtype(name) for name in ("uint8", "int8", "uint16", "int32", "int64")}
    return dtypes.pop() if len(dtypes) == 1 and dtypes <= supported else np.dtype(np.int64)


def _concatenate(shards: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Return all tokens in one array."""
    dtype = _common_dtype(shards)
    tokens = np.concatenate([shard.astype(dtype, copy=False) for shard in shards])
    return tokens.view(np.int16) if dtype == np.uint16 else tokens


def _open_shard(shard: Shard, dtype: np.dtype[Any], header_bytes: int) -> np.ndarray[Any, Any]:
    if isinstance(shard, (str, os.PathLike)):
        array = _map_file(expand_user(shard), dtype, header_bytes)
    else:
        array = shard.cpu().numpy() if isinstance(shard, Tensor) else shard
    if not isinstance(array, np.ndarray):
        raise DataError(
            f"a shard is {a_type(shard)}. Pass the path of a file with tokens, or a 1-d array of integers."
        )
    if array.ndim != 1 or array.dtype.kind not in "iu":
        name = shard if isinstance(shard, (str, os.PathLike)) else "a shard"
        raise DataError(
            f"{name} has shape {array.shape} and dtype {array.dtype}. Pass a 1-d array of integers."
        )
    return array


def _map_file(path: Path, dtype: np.dtype[Any], header_bytes: int) -> np.ndarray[Any, Any]:
    if path.is_dir():
        raise DataFileError(
            f"{path} is a folder. Pass the files in it: sorted(Path({str(path)!r}).iterdir())."
        )
    if not path.is_file():
        pattern = " A pattern is not expanded: pass sorted(glob.glob(…))." if "*" in path.name else ""
        raise DataFileError(
            f"there is no token file at {path}. Pass the path to a file of {dtype} integers.{pattern}"
        )
    if path.suffix == ".npy":
        try:
            array: np.ndarray[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise DataFileError(f"{path} is not a readable .npy file: {error}.") from None
        return array
    body = path.stat().st_size - header_bytes
    if body <= 0:
        after = f" after {header_bytes} bytes of header" if header_bytes else ""
        raise DataFileError(
            f"{path} contains no tokens{after}: it has {path.stat().st_size} bytes. Write it again, or leave "
            "it out."
        )
    if dtype.itemsize > 1 and _is_text(path, header_bytes):
        raise DataFileError(
            f"{path} is text, not {dtype} integers. Tokenize it first, or pass dtype='uint8' to train on "
            "its bytes."
        )
    if body % dtype.itemsize:
        raise DataFileError(
            f"{path} has {path.stat().st_size} bytes, of which {header_bytes} are header: the rest is not a "
            f"multiple of the size of {dtype}. Check dtype= and header_bytes=, and that the file is complete."
        )
    tokens = np.memmap(path, dtype=dtype, mode="r", offset=header_bytes)
    _check_width(tokens, path)
    return tokens


def _is_text(path: Path, header_bytes: int) -> bool:
    """Return whether a file begins with text: integers would have other bytes, too."""
    with open(path, "rb") as file:
        file.seek(header_bytes)
        first = file.read(_NUM_CHECKED)
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(first)  # it may end within a character
    except UnicodeDecodeError:
        return False
    return len(first) >= _FEWEST_CHECKED and all(one.isprintable() or one in "\t\n\r\f" for one in text)


def _check_width(tokens: np.ndarray[Any, Any], path: Path) -> None:
    """Raise if the first tokens of a file show that its integers have another size than `dtype`."""
    first = np.ascontiguousarray(tokens[:_NUM_CHECKED])
    if len(first) < _FEWEST_CHECKED or not first.dtype.isnative:
        return
    wider, narrower = _wider(first), _narrower(first)
    if wider:
        found = f"every {_ORDINALS[wider]} one has a value, and all others are 0"
    elif narrower:
        found = f"many are larger than any vocabulary, up to {first.max()}"
    else:
        return
    size = first.dtype.itemsize * wider if wider else narrower
    raise DataFileError(
        f"{path} does not look like tokens of dtype {tokens.dtype}: of the first {len(first)}, {found}. Its "
        f"integers probably have {8 * size} bits: pass dtype='uint{8 * size}'. Check header_bytes= too."
    )


def _wider(tokens: np.ndarray[Any, Any]) -> int:
    """Return how many times as wide the integers of a file probably are, or 0."""
    for times in (4, 2):
        values, rest = tokens[::times], [tokens[at::times] for at in range(1, times)]
        fits = tokens.dtype.itemsize * times <= 8 and np.count_nonzero(values) * 2 > len(values)
        if fits and not any(part.any() for part in rest):
            return times
    return 0


def _narrower(tokens: np.ndarray[Any, Any]) -> int:
    """Return the size in bytes of the integers of a file if they are probably narrower, or 0.

    All parts of a number are then tokens of the same kind; those of one large number are not.
    """
    if np.quantile(tokens.astype(np.float64), 0.75) < _LARGEST_ID:
        return 0
    for size in (2, 4):
        if size < tokens.dtype.itemsize:
            parts = tokens.view(f"u{size}").reshape(len(tokens), -1).max(axis=0).astype(np.int64)
            if parts.min() * 4 >= parts.max() > 0:
                return size
    return 0

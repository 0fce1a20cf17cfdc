"""The tensors of a model: one safetensors file, shards with an index, or a file of `torch.save`.

Everything that a file claims is checked when it is opened. Values are read one tensor at a time, on demand.
"""

from __future__ import annotations

import pickletools
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flodl.core import FlodlError, HFError
from flodl.core.formats import a_type

from .json_file import read_object
from .source import find_weights, is_inside

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_DOWNLOAD_AGAIN = "The file is damaged: download it again."
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9c"
_UNSAFE = (
    "It may be damaged, or contain objects other than tensors, which flodl does not load because that "
    "would execute code from the file. Nothing was executed. Get the model as safetensors."
)


@dataclass(frozen=True)
class StoredTensor:
    """What a file says about one tensor, and how to read its value."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    path: Path
    read: Callable[[], Tensor]


@dataclass(frozen=True)
class Weights:
    """The tensors of a checkpoint by key; valid until the block of `open_weights` ends."""

    path: Path
    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]

    @property
    def shards(self) -> dict[str, str]:
        """The file name of each key if there are several files, else an empty dict."""
        if not self.path.name.endswith(".index.json"):
            return {}
        return {key: stored.path.name for key, stored in self.tensors.items()}

    def read(self, key: str) -> Tensor:
        """Return the value of a tensor, on the CPU."""
        stored = self.tensors[key]
        try:
            return stored.read()
        except Exception as error:
            raise HFError(f"{stored.path}: the tensor {key!r} cannot be read: {_brief(error)}") from error


@contextmanager
def open_weights(folder: Path) -> Iterator[Weights]:
    """Open the weights in a folder and check their structure."""
    path = find_weights(folder)
    if path is None:
        raise HFError(f"{folder} has no weights.")
    with ExitStack() as stack:
        if path.name.endswith(".index.json"):
            yield _open_shards(path, stack)
        else:
            tensors, metadata = _open_file(path, stack)
            yield Weights(path, tensors, metadata)


def _open_shards(index: Path, stack: ExitStack) -> Weights:
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise HFError(f"{index} has no weight_map from tensors to files. {_DOWNLOAD_AGAIN}")
    for key, name in weight_map.items():
        if not isinstance(name, str) or not is_inside(name):
            raise HFError(f"{index}: the tensor {key!r} is in {name!r}, which is not a file of this folder.")
    tensors: dict[str, StoredTensor] = {}
    metadata: dict[str, str] = {}
    for name in sorted(set(weight_map.values())):
        path = index.parent / name
        if not path.is_file():
            raise HFError(f"{path} is missing, but {index.name} lists it. Download all files of the model.")
        shard, found = _open_file(path, stack)
        metadata.update(found)
        for key, stored in shard.items():
            # A tensor that the index places elsewhere is a stale copy.
            if weight_map.get(key, name) == name:
                tensors[key] = stored
    for key, name in weight_map.items():
        if key not in tensors:
            raise HFError(
                f"{index.parent / name} has no tensor {key!r}, but {index.name} says so. Files of different "
                "models were mixed, or one is damaged: download them again."
            )
    return Weights(index, tensors, metadata)


def _open_file(path: Path, stack: ExitStack) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise HFError(f"{path} cannot be read: {error.strerror}.") from error
    if not stat.S_ISREG(mode):
        raise HFError(f"{path} is not a regular file.")
    if path.suffix == ".safetensors":
        return _open_safetensors(path, stack)
    return _open_torch_save(path), {}


def _open_safetensors(path: Path, stack: ExitStack) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    from safetensors import safe_open

    tensors = {}
    try:
        file: Any = stack.enter_context(safe_open(path, framework="pt", device="cpu"))
        metadata = dict(file.metadata() or {})
        for key in file.keys():  # noqa: SIM118
            part = file.get_slice(key)
            name = part.get_dtype()
            if name not in DTYPES:
                raise HFError(f"{path}: the tensor {key!r} has the type {name}, which is not supported.")
            shape = tuple(part.get_shape())
            tensors[key] = StoredTensor(shape, DTYPES[name], path, partial(file.get_tensor, key))
    except HFError:
        raise
    except Exception as error:
        hint = _git_lfs_hint(path)
        raise HFError(
            f"{path} is not a valid safetensors file: {_brief(error)} {hint or _DOWNLOAD_AGAIN}"
        ) from error
    return tensors, metadata


def _open_torch_save(path: Path) -> dict[str, StoredTensor]:
    """Read a file of `torch.save` without executing anything in it, and without trusting its sizes."""
    from flodl.checkpoint import read_checkpoint

    try:
        with path.open("rb") as file:
            first = file.read(len(_LEGACY))
        content = _read_legacy(path) if first == _LEGACY else read_checkpoint(path)[0]
    except Exception as error:
        hint = _git_lfs_hint(path) or _UNSAFE
        raise HFError(f"{path} cannot be read safely: {_reason(error, path)} {hint}") from error
    tensors = {}
    for key, value in content.items():
        if not isinstance(key, str):
            raise HFError(f"{path} has the key {key!r:.80}; expected the name of a tensor.")
        if not isinstance(value, Tensor):
            raise HFError(f"{path}: {key!r} is {a_type(value)}; expected a tensor.")
        if value.layout != torch.strided or value.is_quantized or value.device.type != "cpu":
            raise HFError(f"{path}: the tensor {key!r} is sparse or quantized, which is not supported.")
        tensors[key] = StoredTensor(tuple(value.shape), value.dtype, path, value.detach)
    return tensors


def _read_legacy(path: Path) -> Mapping[Any, Any]:
    """Read the format before torch 1.6, which old checkpoints of the hub have."""
    size = path.stat().st_size
    with path.open("rb") as file:
        for _ in range(4):  # a magic number, a version, facts about the system, and the tensors
            claimed = max(
                (value for _, value, _ in pickletools.genops(file) if isinstance(value, int)), default=0
            )
    # The last pickle claims the sizes of the tensors, which torch allocates before it reads them.
    if claimed > size:
        raise HFError(f"it claims a tensor of {claimed} elements, but the file has {size} bytes.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pickle protocols, which the user cannot change
        content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, Mapping):
        raise HFError(f"it contains {a_type(content)}; expected a dict of tensors by name.")
    return content


def _reason(error: Exception, path: Path) -> str:
    """Return why a file cannot be read; the advice is given once, at the end."""
    if "Weights only load failed" in str(error):
        return "torch found something other than tensors."
    if not isinstance(error, FlodlError):
        return _brief(error)
    sentence = str(error).removeprefix(f"{str(path)!r} ").split(". ")[0].rstrip(".")
    return f"{sentence if sentence.startswith('it ') else f'it {sentence}'}."


def _git_lfs_hint(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            is_pointer = file.read(64).startswith(b"version https://git-lfs")
    except OSError:
        return None
    return "It is a pointer of Git LFS: run `git lfs pull` in its folder." if is_pointer else None


def _brief(error: BaseException) -> str:
    """Return the first line of a message; torch's advice to disable safety comes after it."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return text if text.endswith((".", "!")) else f"{text}."

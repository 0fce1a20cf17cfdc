"""Writing named tensors as safetensors: one file, or shards with an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from flodl.core import HFError

from ..usage.values import integer
from .names import SAFETENSORS, SAFETENSORS_INDEX

METADATA = {"format": "pt"}  # transformers rejects other frameworks by this
MAX_SHARD_BYTES = 50_000_000_000  # as transformers


def write_tensors(
    folder: Path,
    tensors: Mapping[str, Tensor],
    *,
    shards: Mapping[str, str] | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> list[str]:
    """Write the tensors to a folder and return the names of the files.

    `shards` gives the file of each key, as in the checkpoint that the tensors come from. Without it, a new
    file begins when one would exceed `max_shard_bytes`.
    """
    max_shard_bytes = integer(max_shard_bytes, "max_shard_bytes", at_least=1)
    files = _by_shard(tensors, shards) if shards else _by_size(tensors, max_shard_bytes)
    for name, keys in files.items():
        _write_file(folder / name, {key: tensors[key] for key in keys})
    if list(files) == [SAFETENSORS]:
        return [SAFETENSORS]
    places = {key: name for name, keys in files.items() for key in keys}
    index = {
        "metadata": {
            "total_parameters": sum(tensor.numel() for tensor in tensors.values()),
            "total_size": sum(tensor.nbytes for tensor in tensors.values()),
        },
        "weight_map": dict(sorted(places.items())),
    }
    (folder / SAFETENSORS_INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return [*files, SAFETENSORS_INDEX]


def _by_shard(tensors: Mapping[str, Tensor], shards: Mapping[str, str]) -> dict[str, list[str]]:
    """Place each key as in the source; a new key follows the key before it."""
    files: dict[str, list[str]] = {name: [] for name in sorted(set(shards.values()))}
    current = next(iter(files))
    for key in tensors:
        current = shards.get(key, current)
        files[current].append(key)
    return {name: keys for name, keys in files.items() if keys}


def _by_size(tensors: Mapping[str, Tensor], max_shard_bytes: int) -> dict[str, list[str]]:
    groups: list[list[str]] = [[]]
    used = 0
    for key, tensor in tensors.items():
        if groups[-1] and used + tensor.nbytes > max_shard_bytes:
            groups.append([])
            used = 0
        groups[-1].append(key)
        used += tensor.nbytes
    if len(groups) == 1:
        return {SAFETENSORS: groups[0]}
    stem = SAFETENSORS.removesuffix(".safetensors")
    total = len(groups)
    return {f"{stem}-{number:05}-of-{total:05}.safetensors": keys for number, keys in enumerate(groups, 1)}


def _write_file(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    prepared: dict[str, Tensor] = {}
    used: set[int] = set()
    for key, tensor in tensors.items():
        value = _plain(tensor)
        if value.data_ptr() in used:  # safetensors refuses tensors that share memory
            value = value.clone()
        used.add(value.data_ptr())
        prepared[key] = value
    try:
        save_file(prepared, path, metadata=METADATA)
    except SafetensorError as error:
        raise HFError(f"{path.name} cannot be written: {error}.") from error


def _plain(tensor: Tensor) -> Tensor:
    """Return the value on the CPU, contiguous, and not a view of a larger storage."""
    value = tensor.detach().to("cpu")
    is_whole = value.is_contiguous() and value.untyped_storage().nbytes() == value.nbytes
    return value if is_whole else value.clone(memory_format=torch.contiguous_format)

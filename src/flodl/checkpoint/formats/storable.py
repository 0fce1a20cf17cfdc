"""Conversion of tensors to what a file can store (contiguous, on the CPU, each storage once), and back."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from flodl.core import CheckpointError

from .safetensors import DTYPE_NAMES, METADATA

_ALIASES = "flodl_aliases"
_DTYPES = "flodl_dtypes"


def to_storable(named_tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors that can be written as they are, and the metadata that `from_storable` needs.

    Tied tensors are returned once. Types that the format does not have (complex128) become bytes.
    """
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    dtypes: dict[str, str] = {}
    first_name: dict[tuple[object, ...], str] = {}
    for name, tensor in named_tensors.items():
        check_storable(name, tensor)
        key = storage_key(tensor)
        if tensor.numel() and key in first_name:
            aliases[name] = first_name[key]
            continue
        first_name[key] = name
        # Conjugate and negative views are only flags on the same bytes.
        value = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
        if value.dtype not in DTYPE_NAMES:
            dtypes[name] = str(value.dtype).removeprefix("torch.")
            value = value.reshape(*value.shape, 1).view(torch.uint8)
        tensors[name] = value
    metadata = {_ALIASES: json.dumps(aliases)} if aliases else {}
    return tensors, metadata | ({_DTYPES: json.dumps(dtypes)} if dtypes else {})


def from_storable(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> dict[str, Tensor]:
    """Restore tensors that `to_storable` converted; inconsistent metadata raises ValueError.

    Meta tensors work too, so shapes are known before any value is read.
    """
    restored = dict(tensors)
    for name, dtype_name in _parse_table(metadata, _DTYPES).items():
        dtype = getattr(torch, dtype_name, None)
        if name not in restored or not isinstance(dtype, torch.dtype):
            raise ValueError(f"its metadata gives {name!r} the type {dtype_name!r}")
        restored[name] = restored[name].view(dtype).squeeze(-1)
    for name, stored_name in _parse_table(metadata, _ALIASES).items():
        if stored_name not in tensors or name in tensors:
            raise ValueError(f"its metadata ties {name!r} to {stored_name!r}")
        restored[name] = restored[stored_name]
    return restored


def storage_key(tensor: Tensor) -> tuple[object, ...]:
    """Return a key that is equal for two names of the same tensor and different for two tensors."""
    flags = tensor.is_conj(), tensor.is_neg()
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, flags


def check_storable(name: str, tensor: object) -> None:
    """Raise if the name is reserved, or if the value cannot be stored in a file."""
    if name == METADATA:
        raise CheckpointError(
            f"{METADATA!r} is the key of a file's metadata and cannot name a tensor. Use a different name."
        )
    if not isinstance(tensor, Tensor):
        raise CheckpointError(
            f"the value is a {type(tensor).__name__}. Only tensors can be saved by name.", path=name
        )
    if is_lazy(tensor):
        raise CheckpointError("the parameter has no shape yet. Call the model once first.", path=name)
    if tensor.is_meta:
        raise CheckpointError(
            "the tensor is on the meta device and has no values to save. Initialize the model first.",
            path=name,
        )
    if tensor.layout is not torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        raise CheckpointError(
            f"the tensor is {kind}; only dense tensors can be saved. Save tensor.to_dense() or its parts.",
            path=name,
        )


def _parse_table(metadata: Mapping[str, str], key: str) -> dict[str, str]:
    table = json.loads(metadata.get(key, "{}"))
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise ValueError(f"its metadata {key!r} is not a JSON object of names")
    return table

"""Conversion of tensors to what a file can store (contiguous, on the CPU, each storage once), and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from flodl.core import CheckpointError
from flodl.core.formats import a_type

from ..forked import safe_after_fork
from .safetensors import DTYPE_NAMES, METADATA, aligned

_ALIASES = "flodl_aliases"
_DTYPES = "flodl_dtypes"
# torch can create tensors of these types, but not copy them.
_NOT_COPIED = {getattr(torch, f"{kind}{bits}", None) for kind in ("int", "uint") for bits in range(1, 8)}


@dataclass(frozen=True)
class Storable:
    """Tensors that can be written as they are, and the metadata that `from_storable` needs.

    `itemsizes` are the sizes of one element before the conversion to bytes.
    """

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    itemsizes: Mapping[str, int]


def to_storable(named_tensors: Mapping[str, Tensor]) -> Storable:
    """Convert tensors: tied ones are stored once, and types that the format lacks (complex128) as bytes."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    dtypes: dict[str, str] = {}
    itemsizes: dict[str, int] = {}
    first_name: dict[tuple[object, ...], str] = {}
    for name, tensor in named_tensors.items():
        check_storable(name, tensor)
        key = storage_key(tensor)
        if tensor.numel() and key in first_name:
            aliases[name] = first_name[key]
            continue
        first_name[key] = name
        # Conjugate and negative views are only flags on the same bytes.
        with safe_after_fork():
            value = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
        itemsizes[name] = value.dtype.itemsize
        if value.dtype not in DTYPE_NAMES:
            dtypes[name] = str(value.dtype).removeprefix("torch.")
            value = value.reshape(*value.shape, 1).view(torch.uint8)
        tensors[name] = value
    metadata = {_ALIASES: json.dumps(aliases)} if aliases else {}
    return Storable(tensors, metadata | ({_DTYPES: json.dumps(dtypes)} if dtypes else {}), itemsizes)


def from_storable(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> dict[str, Tensor]:
    """Restore tensors that `to_storable` converted; inconsistent metadata raises ValueError.

    Meta tensors work too, so shapes are known before any value is read.
    """
    restored = dict(tensors)
    for name, dtype_name in _parse_table(metadata, _DTYPES).items():
        dtype, value = getattr(torch, dtype_name, None), restored.get(name)
        if not isinstance(dtype, torch.dtype) or dtype in {*DTYPE_NAMES, *_NOT_COPIED} or value is None:
            raise ValueError(f"its metadata gives {name!r} the type {dtype_name!r}")
        if value.dtype is not torch.uint8 or value.shape[-1:] != (dtype.itemsize,):
            raise ValueError(f"{name!r} of shape {tuple(value.shape)} cannot have the type {dtype_name!r}")
        restored[name] = aligned(value, dtype.itemsize).view(dtype).squeeze(-1)
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
    try:
        name.encode()
    except UnicodeEncodeError:
        raise CheckpointError(f"the name {name!r} is not valid Unicode. Use a different name.") from None
    if not isinstance(tensor, Tensor):
        raise CheckpointError(f"the value is {a_type(tensor)}. Only tensors can be saved by name.", path=name)
    if is_lazy(tensor):
        raise CheckpointError("the parameter has no shape yet. Call the model once first.", path=name)
    if tensor.is_meta:
        raise CheckpointError(
            "the tensor is on the meta device and has no values to save. Initialize the model first.",
            path=name,
        )
    kind = kind_of(tensor)
    if kind != "dense":
        raise CheckpointError(
            f"the tensor is {kind}; only dense tensors can be saved. Save tensor.to_dense() or its parts.",
            path=name,
        )
    if tensor.dtype in _NOT_COPIED:
        raise CheckpointError(
            f"torch cannot copy tensors of {tensor.dtype}. Save tensor.view(torch.uint8).", path=name
        )


def kind_of(tensor: Tensor) -> str:
    """Return "dense", or what else the tensor is.

    >>> kind_of(torch.ones(2)), kind_of(torch.ones(2).to_sparse())
    ('dense', 'sparse_coo')
    """
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_nested:
        return "nested"
    return "dense" if tensor.layout is torch.strided else str(tensor.layout).removeprefix("torch.")


def _parse_table(metadata: Mapping[str, str], key: str) -> dict[str, str]:
    table = json.loads(metadata.get(key, "{}"))
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise ValueError(f"its metadata {key!r} is not a JSON object of names")
    return table

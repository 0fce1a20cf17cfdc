"""Tensors of any kind as plain ones: contiguous, on the CPU, each storage once; and back again."""

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


def make_plain(named_tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Give tensors that can be written as they are, and the notes that undo what was done to them.

    Tied tensors are given once. Types that the format does not know (complex128) are given as bytes.
    """
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    dtypes: dict[str, str] = {}
    first: dict[tuple[object, ...], str] = {}
    for name, tensor in named_tensors.items():
        check_storable(name, tensor)
        place = place_of(tensor)
        if tensor.numel() and place in first:
            aliases[name] = first[place]
            continue
        first[place] = name
        # Conjugate and negative views are only flags on the same bytes.
        value = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
        if value.dtype not in DTYPE_NAMES:
            dtypes[name] = str(value.dtype).removeprefix("torch.")
            value = value.reshape(*value.shape, 1).view(torch.uint8)
        tensors[name] = value
    notes = {_ALIASES: json.dumps(aliases)} if aliases else {}
    return tensors, notes | ({_DTYPES: json.dumps(dtypes)} if dtypes else {})


def undo_plain(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> dict[str, Tensor]:
    """Give the tensors that were made plain; notes that make no sense raise ValueError.

    Works on tensors of the meta device too: their shapes are right before any value is read.
    """
    restored = dict(tensors)
    for name, dtype_name in _table(notes, _DTYPES).items():
        dtype = getattr(torch, dtype_name, None)
        if name not in restored or not isinstance(dtype, torch.dtype):
            raise ValueError(f"{name!r} is said to be of type {dtype_name!r}")
        restored[name] = restored[name].view(dtype).squeeze(-1)
    for name, held in _table(notes, _ALIASES).items():
        if held not in tensors or name in tensors:
            raise ValueError(f"{name!r} is said to be the same as {held!r}")
        restored[name] = restored[held]
    return restored


def place_of(tensor: Tensor) -> tuple[object, ...]:
    """Give what two names of one tensor have in common, and no two tensors."""
    flags = tensor.is_conj(), tensor.is_neg()
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, flags


def check_storable(name: str, tensor: object) -> None:
    """Refuse a name that the format needs, and what has no values or values that no file of ours can hold."""
    if name == METADATA:
        raise CheckpointError(
            f"{METADATA!r} is where a file keeps its metadata, and cannot name a tensor. Call it otherwise."
        )
    if not isinstance(tensor, Tensor):
        raise CheckpointError(
            f"the value is a {type(tensor).__name__}. Only tensors can be saved by name.", path=name
        )
    if is_lazy(tensor):
        raise CheckpointError("the parameter has no shape yet. Call the model once first.", path=name)
    if tensor.is_meta:
        raise CheckpointError(
            "the tensor is on the meta device and has no values to save. Give the model values first.",
            path=name,
        )
    if tensor.layout is not torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        raise CheckpointError(
            f"the tensor is {kind}, and files hold dense ones. Save tensor.to_dense() or its parts.",
            path=name,
        )


def _table(notes: Mapping[str, str], key: str) -> dict[str, str]:
    table = json.loads(notes.get(key, "{}"))
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise ValueError(f"the note {key!r} is not a table of names")
    return table

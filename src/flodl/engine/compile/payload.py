"""A step serialized for the worker process: code and shapes, without the values of tensors."""

from __future__ import annotations

import copyreg
import io
import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from flodl.observe import Book

from ..capture.conditions import as_recorded, can_record
from ..device.torch_flags import current_flags
from ..program.program import StepBody
from ..program.runner import Micro
from .runner import uncompiled

MAX_PAYLOAD_BYTES = 256 << 20


def pack_step(body: StepBody, micro: Micro) -> bytes:
    """Serialize a step; tensors are sent without their values."""
    import cloudpickle  # type: ignore[import-untyped]

    class Packer(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if type(obj) is Tensor or type(obj) is nn.Parameter:
                return _zeros, _metadata(obj)
            if type(obj) is Book:
                # The metrics of a graph so far: other numbers in every start.
                return Book, ()
            if isinstance(obj, nn.Module) and is_parametrized(obj):
                # Torch refuses to pickle it because its class was created at run time; send the class too.
                return copyreg.__newobj__, (type(obj),), vars(obj)  # type: ignore[attr-defined]
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    parts = {
        "model": body.model,
        "step_fn": uncompiled(body.step_fn),
        "settings": body.settings,
        "parameters": body.parameters,
        "micro": as_recorded(micro) if can_record(body.device) else micro,
        "directory": os.getcwd(),
        "flags": current_flags(),
    }
    Packer(buffer).dump(parts)
    if buffer.tell() > MAX_PAYLOAD_BYTES:
        raise ValueError(f"it holds {buffer.tell() >> 20} MiB in addition to its tensors")
    return buffer.getvalue()


def _metadata(tensor: Tensor) -> tuple[Any, ...]:
    return (
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.dtype,
        str(tensor.device),
        tensor.requires_grad and tensor.is_leaf,
        type(tensor) is nn.Parameter,
    )


def _zeros(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    requires_grad: bool,
    is_parameter: bool,
) -> Tensor:
    """Return a tensor of zeros with these properties."""
    zeros = torch.empty_strided(shape, stride, dtype=dtype, device=device).zero_()
    if is_parameter:
        return nn.Parameter(zeros, requires_grad=requires_grad)
    return zeros.requires_grad_(requires_grad)

"""Tensors of every kind, and helpers to save and compare them."""

import io

import torch
from torch import Tensor

from flodl import save_checkpoint

TIED = torch.arange(6.0).reshape(2, 3)


TENSORS = {
    "plain": torch.randn(3, 4),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 5),
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "strided": torch.arange(20.0)[::3],
    "expanded": torch.ones(1, 4).expand(3, 4),
    "sliced": torch.arange(100.0)[10:20],
    "double": torch.randn(2, dtype=torch.float64),
    "half": torch.randn(2).half(),
    "bf16": torch.randn(2).bfloat16(),
    "int64": torch.tensor([1, -(2**60)]),
    "int32": torch.tensor([3, 4], dtype=torch.int32),
    "uint8": torch.tensor([0, 255], dtype=torch.uint8),
    "bool": torch.tensor([True, False]),
    "first.of.tied": TIED,
    "second.of.tied": TIED,
    "view.of.tied": TIED.t(),
    "name with spaces, ünicode": torch.ones(1),
}


def like(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: torch.zeros_like(tensor, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one
    )


def stored(tensors: dict[str, Tensor], **options) -> bytes:
    stream = io.BytesIO()
    save_checkpoint(stream, tensors, **options)
    return stream.getvalue()

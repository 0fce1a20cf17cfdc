"""The linear layers that some sentence-transformers models have after pooling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from flodl.core import HFError

from ..files.json_file import read_object

# By the last part of the class name; the class itself is never imported.
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda values: values,
    "Tanh": torch.tanh,
    "ReLU": torch.relu,
    "GELU": F.gelu,
    "Sigmoid": torch.sigmoid,
}


@dataclass(frozen=True, eq=False)
class Dense:
    """A linear layer with an activation."""

    weight: Tensor
    bias: Tensor | None
    activation: str

    @classmethod
    def from_directory(cls, folder: Path) -> Dense:
        """Read config.json and the weights next to it."""
        path = folder / "config.json"
        settings = read_object(path)
        named = settings.get("activation_function", "torch.nn.modules.activation.Tanh")
        activation = str(named).rpartition(".")[2]
        if activation not in _ACTIVATIONS:
            raise HFError(
                f"{path}: the activation {named!r} is not supported; expected {', '.join(_ACTIVATIONS)}."
            )
        weights = _weights(folder)
        size = settings.get("out_features"), settings.get("in_features")
        weight, bias = weights.get("linear.weight"), weights.get("linear.bias")
        if weight is None or tuple(weight.shape) != size:
            found = "missing" if weight is None else f"of shape {tuple(weight.shape)}"
            raise HFError(f"{folder}: linear.weight is {found}; expected {size}, as in config.json.")
        if (bias is None) == (settings.get("bias", True) is True) or (
            bias is not None and bias.shape != weight.shape[:1]
        ):
            raise HFError(
                f"{folder}: linear.bias does not match config.json. The files do not belong together."
            )
        return cls(weight.float(), None if bias is None else bias.float(), activation)

    def apply(self, values: Tensor) -> Tensor:
        """Transform vectors [B, in]."""
        bias = None if self.bias is None else self.bias.to(values)
        return _ACTIVATIONS[self.activation](F.linear(values, self.weight.to(values), bias))


def _weights(folder: Path) -> dict[str, Any]:
    for name in ("model.safetensors", "pytorch_model.bin"):
        path = folder / name
        if not path.is_file():
            continue
        try:
            found = (
                load_file(path)
                if name.endswith("safetensors")
                else torch.load(path, "cpu", weights_only=True)
            )
        except Exception as error:
            raise HFError(
                f"{path} cannot be read: {error}. The file is damaged: download it again."
            ) from None
        if isinstance(found, dict) and all(isinstance(value, Tensor) for value in found.values()):
            return found
        raise HFError(f"{path} does not contain tensors by name. The file is damaged: download it again.")
    raise HFError(f"{folder} has no weights. Expected model.safetensors or pytorch_model.bin.")

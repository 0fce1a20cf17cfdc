"""The activation functions that a config.json can name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flodl.core import HFError
from flodl.core.paths import suggestion


def _laplace(value: Tensor) -> Tensor:
    return 0.5 * (1.0 + torch.erf((value - 0.707107) / (0.282095 * 2.0**0.5)))


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_10": lambda value: F.gelu(value).clip(-10, 10),
    "gelu_accurate": partial(F.gelu, approximate="tanh"),
    "gelu_fast": partial(F.gelu, approximate="tanh"),
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_python": F.gelu,
    "gelu_python_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "hardswish": F.hardswish,
    "laplace": _laplace,
    "leaky_relu": F.leaky_relu,
    "linear": torch.clone,
    "mish": F.mish,
    "quick_gelu": lambda value: value * torch.sigmoid(1.702 * value),
    "relu": F.relu,
    "relu2": lambda value: F.relu(value).square(),
    "relu6": F.relu6,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "sqrtsoftplus": lambda value: F.softplus(value).sqrt(),
    "swish": F.silu,
    "tanh": torch.tanh,
}


NAMES = tuple(_FUNCTIONS)


class Activation(nn.Module):
    """An activation function by the name that a config.json uses.

    >>> Activation("gelu_new")(torch.zeros(2))
    tensor([0., 0.])
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = check_activation(name)

    def forward(self, value: Tensor) -> Tensor:
        return _FUNCTIONS[self.name](value)

    def extra_repr(self) -> str:
        return self.name


def check_activation(name: str) -> str:
    """Return the name of an activation function, or raise if it is unknown."""
    if name not in _FUNCTIONS:
        hint = suggestion(name, _FUNCTIONS, known_as="activations")
        raise HFError(f"config.json: the activation {name!r} is not supported. {hint}")
    return name

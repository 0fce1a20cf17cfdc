"""The text about a module or function in a picture: its family, settings, size and repr."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from ..plan.titles import title_of
from .model import Family

_ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.GLU),
    *(nn.SiLU, nn.Mish, nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Softplus, nn.Softsign, nn.Softshrink),
    *(nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Hardshrink, nn.Tanhshrink, nn.Threshold),
    *(nn.Softmax, nn.LogSoftmax, nn.Softmax2d, nn.Softmin),
)
_ACTIVATION_NAMES = {kind.__name__.lower() for kind in _ACTIVATIONS} | {"swish", "swiglu", "geglu"}
_DROPOUTS = (nn.modules.dropout._DropoutNd,)
_OMITTED = ("approximate='none'", "inplace=True", "start_dim=1", "end_dim=-1")
_MAX_SETTINGS_LENGTH = 26
_MAX_TEXT_LENGTH = 1200


def family_of(target: Callable[..., Any]) -> Family:
    """Return the family of a node, which determines its color: by type, and by whether it has parameters."""
    name = title_of(target).lower()
    if isinstance(target, _ACTIVATIONS) or name in _ACTIVATION_NAMES:
        return "activation"
    if name.rstrip("123d").endswith("norm") or name.endswith("normalize"):
        return "norm"
    if isinstance(target, _DROPOUTS) or "dropout" in name:
        return "dropout"
    has_parameters = isinstance(target, nn.Module) and next(target.parameters(), None) is not None
    return "layer" if has_parameters else "plain"


def settings_of(target: Callable[..., Any]) -> str:
    """Return the most important settings in a few characters.

    >>> [settings_of(module) for module in (nn.Linear(16, 32), nn.Conv2d(3, 8, 3, stride=2), nn.Dropout(0.1))]
    ['16 → 32', '3 → 8, 3×3 /2', '0.1']
    """
    if not isinstance(target, nn.Module):
        return ""
    for names, words in _SETTINGS:
        if all(hasattr(target, name) for name in names):
            return words(*(getattr(target, name) for name in names))
    if isinstance(target, nn.Sequential | nn.ModuleList):
        return f"{len(target)} modules"
    shown = [words for words in target.extra_repr().split(", ") if words not in _OMITTED]
    text = ", ".join(shown)
    return text if len(text) <= _MAX_SETTINGS_LENGTH and "\n" not in text else ""


def size_of(target: object) -> tuple[int, bool]:
    """Return the number of parameter elements, and whether all of them are frozen."""
    if not isinstance(target, nn.Module):
        return 0, False
    found = [parameter for parameter in target.parameters() if not is_lazy(parameter)]
    frozen = bool(found) and not any(parameter.requires_grad for parameter in found)
    return sum(parameter.numel() for parameter in found), frozen


def text_of(target: object) -> str:
    """Return the repr of a module or function, truncated, without memory addresses."""
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(target))
    return text if len(text) <= _MAX_TEXT_LENGTH else text[:_MAX_TEXT_LENGTH].rstrip() + " …"


def _sizes(value: Any) -> str:
    return "×".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _convolution(channels_in: Any, channels_out: Any, kernel: Any, stride: Any) -> str:
    steps = set(stride) if isinstance(stride, tuple) else {stride}
    return f"{channels_in} → {channels_out}, {_sizes(kernel)}" + ("" if steps == {1} else f" /{max(steps)}")


_SETTINGS: tuple[tuple[tuple[str, ...], Callable[..., str]], ...] = (
    (("in1_features", "in2_features", "out_features"), lambda a, b, out: f"{a}, {b} → {out}"),
    (("in_features", "out_features"), lambda into, out: f"{into} → {out}"),
    (("in_channels", "out_channels", "kernel_size", "stride"), _convolution),
    (("num_embeddings", "embedding_dim"), lambda count, width: f"{count} × {width}"),
    (
        ("input_size", "hidden_size", "num_layers"),
        lambda into, hidden, layers: f"{into} → {hidden}" + (f", {layers} layers" if layers > 1 else ""),
    ),
    (("input_size", "hidden_size"), lambda into, hidden: f"{into} → {hidden}"),
    (("embed_dim", "num_heads"), lambda width, heads: f"{width}, {heads} heads"),
    (("normalized_shape",), _sizes),
    (("num_groups", "num_channels"), lambda groups, channels: f"{channels} in {groups} groups"),
    (("num_features",), str),
    (("num_choices", "linear"), lambda choices, linear: f"{linear.in_features} → {choices}"),
    (("p", "inplace"), lambda p, inplace: f"{p:g}"),
)

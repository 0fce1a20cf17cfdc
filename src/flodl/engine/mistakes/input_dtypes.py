"""Advice for tensors with the wrong dtype: integers where a layer takes floats, and the other way round."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from ..batch.tree import leaves_of
from .batch_names import Named, base_of
from .frames import arguments_of, raising_module

_INTEGER = r"(?:Byte|Char|Short|Int|Long|Bool)"
_FLOAT = r"(?:Float|Double|Half|BFloat16)"
# What torch says if a layer got integers.
_INTEGER_INPUT = (
    rf"(?:but )?got {_INTEGER} and {_FLOAT}|expected scalar type {_FLOAT} but found {_INTEGER}|"
    r"Input type \((?:unsigned char|signed char|short|int|long|long long|int64_t|bool)\)|"
    rf"Input type \(torch\.(?:cuda\.)?{_INTEGER}Tensor\)|not implemented for '{_INTEGER}'|"
    r"all inputs must share same datatype|input dtype \(torch\.(?:u?int\d+|bool)\)"
)
_FLOAT_INDICES = r"'indices' to have .*Long, Int|tensors used as indices must be"
_CLASS_INDICES = r"target dtype to be Long|expected scalar type Long but found|nll_loss"
DTYPES = (
    r"same dtype|scalar type|Found dtype|dtype to be|weight type|can't be cast|not implemented for '|"
    r"expected .* dtype|data type|of the following scalar types|type .* should be the same|"
    rf"{_INTEGER_INPUT}|{_FLOAT_INDICES}|does not match weight dtype"
)


def dtype_advice(told: str, error: Exception, model: nn.Module, named: Named) -> str:
    """Return which tensor to convert, and how."""
    if re.search(_FLOAT_INDICES, told):
        return _indices(named)
    is_integer_input = re.search(_INTEGER_INPUT, told) and "nll_loss" not in told
    if is_integer_input and (integers := _integer_input(error, model, named)):
        return integers
    if re.search(_CLASS_INDICES, told):
        return "Class indices, such as cross_entropy targets, must be int64 (torch.long): y.long()."
    expected = _dtype_of(model)
    if any(leaf.is_floating_point() and leaf.dtype != expected for _, leaf in named):
        name = _short(expected)
        return (
            f"The model computes in {name}. Convert the data once: x.to(torch.{name}). NumPy's floats are "
            "float64 unless you convert them."
        )
    return (
        "Inputs are floats: x.float(). So are the targets of a regression or of binary_cross_entropy: "
        "y.float(). Class indices, such as cross_entropy targets, must be int64 (torch.long): y.long()."
    )


def _indices(named: Named) -> str:
    floats = [name for name, leaf in named if leaf.is_floating_point()]
    name = floats[0] if len(floats) == 1 else "x"
    return f"Indices, such as nn.Embedding inputs, must be integers: pass {name}.long()."


def _integer_input(error: Exception, model: nn.Module, named: Named) -> str:
    """Return the advice for a layer of the model that got integers, or "" if no layer raised the error."""
    found = raising_module(error, model)
    if found is None:
        return ""
    path, module = found
    layer = f"{path!r} ({type(module).__name__})" if path else type(module).__name__
    takes = f"{layer} takes {_short(_dtype_of(model))}"
    passed = [base_of(one) for one in leaves_of(arguments_of(error, model)) if isinstance(one, Tensor)]
    integers = [(name, leaf) for name, leaf in named if not leaf.is_floating_point()]
    given = [one for one in integers if any(base_of(one[1]) is base for base in passed)]
    if not given:
        return f"{takes}, but its input is an integer tensor: convert it with x.float()."
    name, leaf = given[0]
    if leaf.dtype == torch.uint8:
        return f"{takes}, but {name} is uint8: pass {name}.float(), or {name}.float() / 255 for images."
    return (
        f"{takes}, but {name} is {_short(leaf.dtype)}: pass {name}.float(). Tokens and other indices go "
        "through an nn.Embedding first."
    )


def _dtype_of(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

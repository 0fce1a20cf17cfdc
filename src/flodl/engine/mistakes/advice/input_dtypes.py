"""Advice for tensors with the wrong dtype: integers where a layer takes floats, and the other way round."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from ...batch.tree import leaves_of
from ..batch_names import Named, base_of
from .frames import arguments_of, raising_module

_INTEGER = r"(?:Byte|Char|Short|Int|Long|Bool)"
_FLOAT = r"(?:Float|Double|Half|BFloat16)"
# What torch says if a layer got integers.
_INTEGER_INPUT = (
    rf"(?:but )?got {_INTEGER} and {_FLOAT}|expected scalar type {_FLOAT} but found {_INTEGER}|"
    r"Input type \((?:unsigned char|signed char|short|int|long|long long|int64_t|bool)\)|"
    rf"Input type \(torch\.(?:cuda\.)?{_INTEGER}Tensor\)|not implemented for '{_INTEGER}'|"
    r"input dtype \(torch\.(?:u?int\d+|bool)\)"
)
# What torch says if it does not name the dtypes.
_ANY_INPUT = r"all inputs must share same datatype"
_INTEGER_FOUND = rf"[Ff]ound (dtype )?{_INTEGER}"
_FLOAT_INDICES = r"'indices' to have .*Long, Int|tensors used as indices must be"
_CLASS_INDICES = r"target dtype to be Long|expected scalar type Long but found|nll_loss"
DTYPES = (
    r"same dtype|scalar type|Found dtype|dtype to be|weight type|can't be cast|not implemented for '|"
    r"expected .* dtype|data type|of the following scalar types|type .* should be the same|"
    rf"{_INTEGER_INPUT}|{_ANY_INPUT}|{_FLOAT_INDICES}|does not match weight dtype"
)


def dtype_advice(told: str, error: Exception, model: nn.Module, named: Named) -> str:
    """Return which tensor to convert, and how."""
    if re.search(_FLOAT_INDICES, told):
        return _indices(named)
    is_integer_input = re.search(_INTEGER_INPUT, told) and "nll_loss" not in told
    if is_integer_input and (integers := _integer_input(error, model, named)):
        return integers
    if re.search(_ANY_INPUT, told) and (unnamed := _integer_or_float(error, model, named)):
        return unnamed
    if re.search(_CLASS_INDICES, told):
        return "Class indices, such as cross_entropy targets, must be int64 (torch.long): y.long()."
    if not re.search(_INTEGER_FOUND, told) and (floats := _wrong_floats(named, _dtype_of(model))):
        return _to_convert(floats, _dtype_of(model))
    return (
        "Inputs are floats: x.float(). So are the targets of a regression or of binary_cross_entropy: "
        "y.float(). Class indices, such as cross_entropy targets, must be int64 (torch.long): y.long()."
    )


def _indices(named: Named) -> str:
    floats = [name for name, leaf in named if leaf.is_floating_point()]
    name = floats[0] if len(floats) == 1 else "x"
    return f"Indices, such as nn.Embedding inputs, must be integers: pass {name}.long()."


def _integer_or_float(error: Exception, model: nn.Module, named: Named) -> str:
    """Return the advice for a layer of the model that got integers or floats of another dtype, or ""."""
    found = raising_module(error, model)
    if found is None:
        return ""
    expected = _dtype_of(found[1], of_others=_dtype_of(model))
    given = _tensors(arguments_of(error, model, innermost=True))
    got_floats = any(one.is_floating_point() and one.dtype != expected for one in given)
    got_integers = any(not one.is_floating_point() for one in given)
    if got_integers and not got_floats:
        return _integer_input(error, model, named)
    floats = _wrong_floats(named, expected)
    if got_integers and floats:
        return (
            f"{_layer_text(*found)} takes {_short(expected)}, but got tensors of other dtypes. "
            f"{_to_convert(floats, expected)} Also convert integers that it gets: x.float()."
        )
    if got_floats and not floats:
        name = _short(expected)
        return f"{_layer_text(*found)} takes {name}: convert its input with x.to(torch.{name})."
    return ""


def _wrong_floats(named: Named, expected: torch.dtype) -> Named:
    return [(name, leaf) for name, leaf in named if leaf.is_floating_point() and leaf.dtype != expected]


def _to_convert(floats: Named, expected: torch.dtype) -> str:
    """Return the advice for parts of the batch that are floats of another dtype."""
    name = _short(expected)
    are_expressions = len(floats) < 4 and not any(" " in one for one, _ in floats)
    which = [one for one, _ in floats] if are_expressions else ["x"]
    return (
        f"The model computes in {name}. Convert the data once: "
        f"{' and '.join(f'{one}.to(torch.{name})' for one in which)}. NumPy's floats are float64 unless you "
        "convert them."
    )


def _integer_input(error: Exception, model: nn.Module, named: Named) -> str:
    """Return the advice for a layer of the model that got integers, or "" if no layer raised the error."""
    found = raising_module(error, model)
    if found is None:
        return ""
    takes = f"{_layer_text(*found)} takes {_short(_dtype_of(model))}"
    integers = [(name, leaf) for name, leaf in named if not leaf.is_floating_point()]
    given = _passed(integers, arguments_of(error, model, innermost=True))
    if not given:
        given = _passed(integers, arguments_of(error, model))
    if len(given) != 1:
        return f"{takes}, but its input is an integer tensor: convert it with x.float()."
    name, leaf = given[0]
    if leaf.dtype == torch.uint8:
        return f"{takes}, but {name} is uint8: pass {name}.float(), or {name}.float() / 255 for images."
    return (
        f"{takes}, but {name} is {_short(leaf.dtype)}: pass {name}.float(). Tokens and other indices go "
        "through an nn.Embedding first."
    )


def _passed(named: Named, arguments: list[Any]) -> Named:
    """Return the tensors of the batch that are among arguments, as they are or as views."""
    bases = {id(base_of(one)) for one in _tensors(arguments)}
    return [(name, leaf) for name, leaf in named if id(base_of(leaf)) in bases]


def _tensors(arguments: list[Any]) -> list[Tensor]:
    return [one for one in leaves_of(arguments) if isinstance(one, Tensor)]


def _layer_text(path: str, module: nn.Module) -> str:
    return f"{path!r} ({type(module).__name__})" if path else type(module).__name__


def _dtype_of(module: nn.Module, of_others: torch.dtype = torch.float32) -> torch.dtype:
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), of_others)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

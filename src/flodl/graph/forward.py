"""Classes of graphs whose `forward` names its inputs, as `torch.export` and ONNX read them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import Parameter, Signature
from types import FunctionType
from typing import Any

_OF = "_flodl_class_of"


def naming(names: tuple[str, ...], forward: Any) -> Callable[..., Any]:
    """Return a copy of `forward` whose signature has these inputs; it still accepts any arguments.

    A call with the wrong inputs gets an error of the graph, not of Python.
    """
    named = FunctionType(
        forward.__code__, forward.__globals__, forward.__name__, forward.__defaults__, forward.__closure__
    )
    named.__kwdefaults__, named.__doc__ = forward.__kwdefaults__, forward.__doc__
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *names)]
    vars(named)["__signature__"] = Signature(parameters)
    return named


@cache
def with_inputs(cls: type[Any], names: tuple[str, ...]) -> type[Any]:
    """Return the class of graphs whose `forward` takes inputs of these names: a subclass, or `cls` itself.

    Graphs with the same names share one class, so the signature costs no reference from a graph to itself.
    """
    if names == ("input",):
        return cls
    body = {
        "forward": naming(names, cls.forward),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        _OF: (cls, names),
    }
    return type(cls.__name__, (cls,), body)


def of_class(cls: type[Any]) -> tuple[type[Any], tuple[str, ...]]:
    """Return the class of a graph before `with_inputs`, and the names; no names without it."""
    found: tuple[type[Any], tuple[str, ...]] = cls.__dict__.get(_OF, (cls, ()))
    return found


def rebuild(cls: type[Any], names: tuple[str, ...]) -> Any:
    """Return an empty graph, for a copy or a pickle to fill."""
    return object.__new__(with_inputs(cls, names))  # type: ignore[arg-type]

"""Classes of graphs whose `forward` names its inputs, as `torch.export` and ONNX read them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import takewhile
from typing import Any


class _Missing:
    """The default of an input that was not passed."""

    def __repr__(self) -> str:
        return "…"

    def __reduce__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
_OF = "_flodl_class_of"
_TEMPLATE = """\
def forward(self, {parameters}, *others, **named):
    if others or named or {any_missing}:
        return _flodl_refuse(self, ({values},), others, named)
    return _flodl_base(self, {values})
"""


@cache
def with_inputs(cls: type[Any], names: tuple[str, ...]) -> type[Any]:
    """Return the class of graphs whose `forward` takes inputs of these names: a subclass, or `cls` itself.

    Graphs with the same names share one class, so the signature costs no reference from a graph to itself.
    """
    if names == ("input",):
        return cls
    body = {
        "forward": _forward(cls, names),
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


def _forward(cls: type[Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """Return the method: it passes the inputs on by position, and leaves errors to the base class."""
    text = _TEMPLATE.format(
        parameters=", ".join(f"{name}=_flodl_missing" for name in names),
        any_missing=" or ".join(f"{name} is _flodl_missing" for name in names),
        values=", ".join(names),
    )
    base = cls.forward

    def refuse(graph: Any, given: tuple[Any, ...], others: tuple[Any, ...], named: dict[str, Any]) -> Any:
        by_position = [*takewhile(lambda value: value is not MISSING, given)]
        rest = zip(names[len(by_position) :], given[len(by_position) :])
        by_name = {name: value for name, value in rest if value is not MISSING}
        return base(graph, *by_position, *others, **by_name, **named)

    namespace = {"_flodl_missing": MISSING, "_flodl_base": base, "_flodl_refuse": refuse}
    exec(compile(text, "<flodl forward>", "exec"), namespace)
    method: Callable[..., Any] = namespace["forward"]
    return method

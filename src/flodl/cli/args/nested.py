"""Nested dataclasses: their fields are options with dotted names, such as `--optimizer.lr`."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Set
from typing import Any, Union

from .parameter import Parameter


def nested_class(annotation: Any) -> tuple[type | None, bool]:
    """Return the dataclass that an annotation names, or None, and whether it is optional."""
    inner = typing.get_args(annotation)
    if typing.get_origin(annotation) in (Union, types.UnionType) and type(None) in inner and len(inner) == 2:
        found, _ = nested_class(inner[0] if inner[1] is type(None) else inner[1])
        return found, True
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return annotation, False
    return None, False


def construct(
    cls: type, values: Mapping[str, Any], given: Set[str], absent: Set[str] = frozenset(), prefix: str = ""
) -> Any:
    """Build a dataclass and the ones inside it from values by dotted name.

    An optional one whose default is None stays None unless one of its values is given; those in `absent` are
    None.
    """
    hints = typing.get_type_hints(cls)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        name = prefix + field.name
        inner, _ = nested_class(hints[field.name])
        if not field.init:
            continue
        if inner is None:
            found[field.name] = values[name]
        elif name in absent or (
            default_of(field) is None and not any(one.startswith(f"{name}.") for one in given)
        ):
            found[field.name] = None
        else:
            found[field.name] = construct(inner, values, given, absent, f"{name}.")
    try:
        return cls(**found)
    except ValueError as error:  # raised by `__post_init__`
        if not prefix:
            raise
        raise ValueError(f"{prefix.removesuffix('.')}: {error}") from error


def groups_of(cls: type, prefix: str = "") -> dict[str, bool]:
    """Return the dotted names of the dataclasses inside a dataclass, and whether each may be None."""
    found: dict[str, bool] = {}
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        inner, is_optional = nested_class(hints[field.name])
        if field.init and inner is not None:
            name = prefix + field.name
            found |= {name: is_optional, **groups_of(inner, f"{name}.")}
    return found


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, or MISSING."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def is_unused(parameter: Parameter, given: Set[str]) -> bool:
    """Return whether a parameter belongs to an optional dataclass that stays None."""
    return bool(parameter.group) and not any(name.startswith(f"{parameter.group}.") for name in given)

"""Nested dataclasses: their fields are options with dotted names, such as `--optimizer.lr`."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Union

from flodl.core.errors import ArgsError
from flodl.core.paths import suggestion

from .parameter import Parameter, format_value


def nested_class(annotation: Any) -> tuple[type | None, bool]:
    """Return the dataclass that an annotation names, or None, and whether it is optional."""
    inner = typing.get_args(annotation)
    if typing.get_origin(annotation) in (Union, types.UnionType) and type(None) in inner and len(inner) == 2:
        found, _ = nested_class(inner[0] if inner[1] is type(None) else inner[1])
        return found, True
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return annotation, False
    return None, False


def construct(cls: type, values: Mapping[str, Any], given: Set[str], prefix: str = "") -> Any:
    """Build a dataclass and the ones inside it from values by dotted name.

    An optional one whose default is None stays None unless one of its values is given.
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
        elif default_of(field) is None and not any(one.startswith(f"{name}.") for one in given):
            found[field.name] = None
        else:
            found[field.name] = construct(inner, values, given, f"{name}.")
    try:
        return cls(**found)
    except ValueError as error:  # raised by `__post_init__`
        if not prefix:
            raise
        raise ValueError(f"{prefix.removesuffix('.')}: {error}") from error


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, or MISSING."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def is_unused(parameter: Parameter, given: Set[str]) -> bool:
    """Return whether a parameter belongs to an optional dataclass that stays None."""
    return bool(parameter.group) and not any(name.startswith(f"{parameter.group}.") for name in given)


def flattened(values: Mapping[str, Any], parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Return nested values by dotted name. Raise for a name that no parameter has."""
    known = {parameter.name: parameter for parameter in parameters}
    groups = {name[:at] for name in known for at in range(len(name)) if name[at] == "."}
    found = {}
    for name, value in _flat(values, known, ""):
        if name in groups and value is None:
            continue  # an optional dataclass
        if name not in known:
            raise ArgsError(f"there is no setting {name!r}. {suggestion(name, known, known_as='settings')}")
        found[name] = value
    return found


def words_of(values: Mapping[str, Any], parameters: Sequence[Parameter]) -> list[str]:
    """Return the command line that sets these values."""
    options: list[str] = []
    arguments: list[str] = []
    for parameter in parameters:
        value = values.get(parameter.name)
        if value is None:
            continue
        if parameter.kind == "argument":
            arguments += map(format_value, value if isinstance(value, list | tuple) else [value])
        elif parameter.type == "bool":
            options += [f"--{parameter.long}"] if value else []
            options += [f"--no-{parameter.long}"] if not value and parameter.has_negation else []
        else:
            options.append(f"--{parameter.long}={format_value(value)}")
    return [*options, "--", *arguments]


def _flat(values: Mapping[str, Any], known: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = prefix + str(key).replace("-", "_")
        if isinstance(value, Mapping) and name not in known:
            yield from _flat(value, known, f"{name}.")
        else:
            yield name, value

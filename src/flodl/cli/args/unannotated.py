"""Attributes of a dataclass that look like fields but are not: no annotation, or no `@dataclass`."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from flodl.core.errors import ArgsError

_SCALARS = (bool, int, float, str, Path, Enum)


def refuse_unannotated(cls: type, hints: Mapping[str, Any], path: str) -> None:
    """Raise for an attribute that looks like a field but has no annotation, or is in an undecorated class.

    Names in capitals or with an underscore, and attributes that other base classes define, are not reported.
    """
    fields = {field.name for field in dataclasses.fields(cls)}
    for owner in _classes(cls):
        annotated = inspect.get_annotations(owner)
        is_decorated = "__dataclass_fields__" in vars(owner)
        for name in dict.fromkeys([*annotated, *vars(owner)]):
            value = vars(owner).get(name, dataclasses.MISSING)
            if name.startswith("_") or name.isupper() or _is_class_variable(hints.get(name)):
                continue
            if name in annotated:
                if not is_decorated:
                    raise ArgsError(
                        f"{owner.__name__} is not decorated with @dataclass, so its fields are those of "
                        f"{owner.__base__.__name__}. Decorate it with @dataclass."  # type: ignore[union-attr]
                    ).under(f"{path}.{name}")
            elif _looks_like_default(value) and (name in fields or not _is_inherited(owner, name)):
                raise _unannotated(name, value, is_field=name in fields).under(f"{path}.{name}")


def _classes(cls: type) -> Iterator[type]:
    """Return a dataclass, and those it inherits fields from; a class of another module cannot be changed."""
    for one in cls.__mro__:
        if one is cls or ("__dataclass_fields__" in vars(one) and one.__module__ == cls.__module__):
            yield one


def _is_class_variable(hint: Any) -> bool:
    return hint is typing.ClassVar or typing.get_origin(hint) is typing.ClassVar


def _is_inherited(owner: type, name: str) -> bool:
    return any(hasattr(base, name) or name in inspect.get_annotations(base) for base in owner.__mro__[1:])


def _looks_like_default(value: Any) -> bool:
    """Return whether a value could be the default of an option."""
    if isinstance(value, list | tuple):
        return all(isinstance(one, _SCALARS) for one in value)
    if isinstance(value, dict):
        return all(isinstance(one, _SCALARS) for one in value.values())
    is_instance = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return value is None or is_instance or isinstance(value, (*_SCALARS, dataclasses.Field))


def _unannotated(name: str, value: Any, *, is_field: bool) -> ArgsError:
    kind, text = _annotation(value), repr(value)
    if isinstance(value, Enum):
        text = str(value) if type(value).__str__ is Enum.__str__ else f"{type(value).__name__}.{value.name}"
    elif isinstance(value, dataclasses.Field):
        text = "…"
    elif isinstance(value, list | dict) or dataclasses.is_dataclass(value):
        text = f"option({text})"  # a dataclass refuses a default that can be changed
    effect = "the default is not changed" if is_field else "it is not an option"
    message = f"it has no type annotation, so {effect}."
    constant = "" if is_field else f", or '{name}: ClassVar[{kind}] = …' if it is a constant"
    return ArgsError(f"{message} Write '{name}: {kind} = {text}'{constant}.")


def _annotation(value: Any) -> str:
    """Return the annotation of a field with this default."""
    if value is None:
        return "str | None"
    if isinstance(value, list):
        return f"list[{_annotation(next(iter(value), ''))}]"
    if isinstance(value, tuple):
        return f"tuple[{_annotation(next(iter(value), ''))}, ...]"
    if isinstance(value, dict):
        return f"dict[str, {_annotation(next(iter(value.values()), ''))}]"
    if isinstance(value, dataclasses.Field):
        return "float"
    return "Path" if isinstance(value, Path) else type(value).__name__

"""From a dataclass to parameters: every mistake in its definition is an error with the field's name."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from enum import Enum, EnumType
from pathlib import Path
from typing import Any, Literal, Union

from flodl.core.errors import ArgsError

from .declarations import KEY
from .parameter import RESERVED_SHORT, TAKEN_LONG, Parameter

_NAMES: dict[Any, str] = {bool: "bool", int: "int", float: "float", str: "string", Path: "path"}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_USABLE = "bool, int, float, str, Path, Literal, an Enum, T | None, or a list of these"


@dataclasses.dataclass(frozen=True)
class _Shape:
    """What the annotation of a field says."""

    type: str
    choices: tuple[Any, ...] = ()
    optional: bool = False
    enum: EnumType | None = None
    as_tuple: bool = False


def parameters_of(cls: type) -> list[Parameter]:
    """Give the parameters that the fields of a dataclass declare, in their order."""
    if dataclasses.is_dataclass(cls) and not isinstance(cls, type):
        raise ArgsError(
            f"this is an instance of {type(cls).__name__}. Give the class: Args({type(cls).__name__})."
        )
    if not dataclasses.is_dataclass(cls):
        raise ArgsError(f"{cls!r} is not a dataclass. Decorate it with @dataclass.")
    hints = _hints(cls)
    _refuse_init_only(cls)
    found: list[Parameter] = []
    for field in dataclasses.fields(cls):
        if field.init:
            try:
                found.append(_parameter(field, _shape(hints[field.name])))
                _check_beside(found)
            except ArgsError as error:
                raise error.under(f"{cls.__name__}.{field.name}") from None
    return found


def _hints(cls: type) -> dict[str, Any]:
    """Read the annotations; of one that cannot be read, the field is named."""
    try:
        return typing.get_type_hints(cls)
    except Exception as error:
        name, words = _unreadable(cls), str(error)
        raise ArgsError(f"{words}. Import the type at the top of the module.").under(name) from None


def _unreadable(cls: type) -> str:
    for base in cls.__mro__:
        for name, annotation in vars(base).get("__annotations__", {}).items():
            probe = type(
                cls.__name__, (), {"__annotations__": {name: annotation}, "__module__": base.__module__}
            )
            try:
                typing.get_type_hints(probe)
            except Exception:
                return f"{cls.__name__}.{name}"
    return cls.__name__


def _refuse_init_only(cls: type) -> None:
    """`InitVar` is no field: it could not be filled in."""
    for name, field in vars(cls).get("__dataclass_fields__", {}).items():
        if field._field_type is dataclasses._FIELD_INITVAR and field.default is dataclasses.MISSING:  # type: ignore[attr-defined]
            raise ArgsError("an InitVar cannot be given here. Make it a field, or give it a default.").under(
                f"{cls.__name__}.{name}"
            )


def _shape(annotation: Any) -> _Shape:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _NAMES:
        return _Shape(_NAMES[annotation])
    if origin is Literal:
        kinds = {type(choice) for choice in inner}
        if len(kinds) == 1 and kinds <= {int, str}:
            return _Shape(_NAMES[kinds.pop()], inner)
        raise ArgsError(f"the choices are {inner}. Give strings, or whole numbers, not both.")
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _Shape("string", tuple(annotation), enum=annotation)
    if origin in (Union, types.UnionType) and len(inner) == 2 and type(None) in inner:
        shape = _shape(inner[0] if inner[1] is type(None) else inner[1])
        if shape.type == "bool":
            raise ArgsError("a flag is given or not: annotate it as bool, not as bool | None.")
        return dataclasses.replace(shape, optional=True)
    if origin is list or (origin is tuple and inner[1:] == (Ellipsis,)):
        shape = _shape(inner[0])
        if shape.type in ("string", "int", "float", "path") and not shape.optional:
            as_tuple = origin is tuple
            return _Shape(f"list[{shape.type}]", shape.choices, enum=shape.enum, as_tuple=as_tuple)
    raise ArgsError(f"{annotation} cannot be read from a command line. Use {_USABLE}.")


def _parameter(field: dataclasses.Field[Any], shape: _Shape) -> Parameter:
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    missing = default is dataclasses.MISSING
    said = dict(field.metadata.get(KEY, {"kind": "argument" if missing else "option"}))
    if field.name.startswith("_"):
        raise ArgsError(
            "a name cannot begin with an underscore. Rename it, or take it out: field(init=False)."
        )
    if said.get("choices") == ():
        raise ArgsError("choices=[] allows nothing. Name some, or leave it out.")
    said["choices"] = said.get("choices") or shape.choices
    said["env"] = _variable(said.get("env"))
    if missing and said["kind"] == "option" and shape.type.startswith("list[") and not shape.optional:
        default = []
    parameter = Parameter(
        name=field.name,
        type=shape.type,
        default=None if default is dataclasses.MISSING else default,
        required=missing and not shape.optional,
        variadic=said["kind"] == "argument" and shape.type.startswith("list["),
        as_tuple=shape.as_tuple,
        **said,
    )
    check = _check_option if parameter.kind == "option" else _check_argument
    check(parameter, shape, missing=missing)
    if not missing:
        _check_default(parameter, shape)
    _check_values(parameter, shape)
    return parameter


def _variable(name: str | None) -> str:
    if name is not None and not _VARIABLE.match(name):
        raise ArgsError(f"env={name!r} is no name of a variable. Write letters, digits and underscores.")
    return name or ""


def _check_option(parameter: Parameter, shape: _Shape, *, missing: bool) -> None:
    if missing and not shape.optional and not parameter.is_list and parameter.takes_value:
        raise ArgsError("an option needs a default. Give one, make it T | None, or use argument().")
    if parameter.bare is not None and not shape.optional:
        raise ArgsError("only an optional field (T | None) can stand without a value: leave `bare` out.")
    if parameter.type == "bool" and parameter.choices:
        raise ArgsError("a flag has no choices.")
    if parameter.short and len(parameter.short) != 1:
        raise ArgsError(f"short={parameter.short!r} must be one letter.")
    if parameter.short and not (parameter.short.isascii() and parameter.short.isalpha()):
        raise ArgsError(f"short={parameter.short!r} must be a letter from a to z or A to Z.")


def _check_argument(parameter: Parameter, shape: _Shape, *, missing: bool) -> None:
    if parameter.type == "bool":
        raise ArgsError("a bool cannot be positional. Make it an option: option(False).")


def _check_default(parameter: Parameter, shape: _Shape) -> None:
    """See that there is a list where a list is wanted, one value where one is, and None where that may be."""
    default = parameter.default
    if default is None:
        if not shape.optional:
            raise ArgsError("None is no default for it. Annotate it as T | None, or give another one.")
    elif isinstance(default, (list, tuple)) != parameter.is_list:
        wanted = "a list" if parameter.is_list else f"one {parameter.scalar}"
        raise ArgsError(f"the default {default!r} is not {wanted}. Give one, or change the annotation.")


def _check_values(parameter: Parameter, shape: _Shape) -> None:
    """See that the default and the value of a bare option are of the type, and among the choices."""
    given = parameter.default if isinstance(parameter.default, (list, tuple)) else [parameter.default]
    values = [value for value in (*parameter.choices, *given, parameter.bare) if value is not None]
    for value in values:
        if shape.enum is not None and not isinstance(value, shape.enum):
            members = ", ".join(map(str, shape.enum))
            raise ArgsError(f"{value!r} is no member of {shape.enum.__name__}. Write one of {members}.")
        if shape.enum is None and not _is_one(value, parameter.scalar):
            raise ArgsError(f"{value!r} is no {parameter.scalar}. Give one, or change the annotation.")
        if parameter.choices and value not in parameter.choices:
            raise ArgsError(f"{value!r} is not among the choices {list(parameter.choices)}.")


def _is_one(value: object, scalar: str) -> bool:
    """Say whether a value is of a scalar type; a bool is no number, and a member of an Enum is no string."""
    if isinstance(value, bool) or scalar == "bool":
        return isinstance(value, bool) and scalar == "bool"
    accepted = {"int": (int,), "float": (int, float), "string": (str,), "path": (str, Path)}
    return isinstance(value, accepted[scalar]) and not isinstance(value, Enum)


def _check_beside(parameters: list[Parameter]) -> None:
    """See that the last one can stand beside those before it."""
    *before, last = parameters
    if last.kind == "argument":
        arguments = [other for other in before if other.kind == "argument"]
        if arguments and arguments[-1].variadic:
            raise ArgsError(f"it follows {arguments[-1].name!r}, which is variadic and must be the last.")
        if last.required and any(not other.required for other in arguments):
            raise ArgsError("a required argument cannot follow an optional one. Give it a default.")
        return
    if last.long in TAKEN_LONG:
        raise ArgsError(f"--{last.long} is reserved for fdl. Choose another name.")
    if last.short in RESERVED_SHORT and last.short:
        raise ArgsError(f"-{last.short} is reserved for fdl. Choose another letter.")
    for other in before:
        if other.kind == "option" and last.long in (other.long, f"no-{other.long}"):
            raise ArgsError(f"--{last.long} is already taken by {other.name!r}.")
        if other.kind == "option" and other.long == f"no-{last.long}":
            raise ArgsError(f"--{other.long}, which switches it off, is already taken by {other.name!r}.")
        if last.short and other.short == last.short:
            raise ArgsError(f"it and {other.name!r} both declare short -{last.short}.")

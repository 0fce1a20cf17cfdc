"""Turn the fields of a dataclass into parameters; an error in the definition names the field."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from enum import Enum, EnumType
from pathlib import Path
from typing import Any, Literal, Union

from flodl.core.errors import ArgsError

from .declarations import METADATA_KEY
from .nested import default_of, nested_class
from .parameter import RESERVED_IN_ARGS, RESERVED_SHORT, SCALARS, Parameter
from .unannotated import refuse_unannotated

_TYPE_NAMES: dict[Any, str] = {bool: "bool", int: "int", float: "float", str: "string", Path: "path"}
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SUPPORTED = (
    "bool, int, float, str, Path, Literal, an Enum, T | None, a list, tuple or dict of these, or a dataclass"
)


@dataclasses.dataclass(frozen=True)
class _FieldType:
    """The parameter type that the annotation of a field describes."""

    type: str
    choices: tuple[Any, ...] = ()
    optional: bool = False
    enum: EnumType | None = None
    as_tuple: bool = False


def parameters_of(cls: type) -> list[Parameter]:
    """Return the parameters that the fields of a dataclass declare, in order."""
    if dataclasses.is_dataclass(cls) and not isinstance(cls, type):
        raise ArgsError(
            f"expected a dataclass, got an instance of {type(cls).__name__}. "
            f"Pass the class: Args({type(cls).__name__})."
        )
    if not dataclasses.is_dataclass(cls):
        raise ArgsError(f"{cls!r} is not a dataclass. Decorate it with @dataclass.")
    found: list[Parameter] = []
    _collect(cls, found, root=cls.__name__, parents=())
    return found


def _collect(
    cls: type,
    found: list[Parameter],
    *,
    root: str,
    parents: tuple[type, ...],
    prefix: str = "",
    default: Any = None,
    group: str = "",
) -> None:
    """Add the parameters of a dataclass, or of one inside it, whose defaults are those of an instance."""
    hints = _hints(cls)
    refuse_unannotated(cls, hints, f"{root}.{prefix}".removesuffix("."))
    _refuse_init_vars(cls)
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        name = prefix + field.name
        try:
            inner, _ = nested_class(hints[field.name])
            if default is not None:
                field = _with_default(field, getattr(default, field.name))
            if inner is None:
                parameter = _parameter(field, _field_type(hints[field.name]), prefix)
                found.append(dataclasses.replace(parameter, group=group))
                _check_conflicts(found)
                continue
            if inner in (*parents, cls):
                raise ArgsError(f"{inner.__name__} contains itself, so it has no end. Exclude this field.")
        except ArgsError as error:
            raise error.under(f"{root}.{name}") from None
        value = default_of(field)
        _collect(
            inner,
            found,
            root=root,
            parents=(*parents, cls),
            prefix=f"{name}.",
            default=None if value is dataclasses.MISSING else value,
            group=group or (name if value is None else ""),
        )


def _with_default(field: dataclasses.Field[Any], value: Any) -> dataclasses.Field[Any]:
    """Return the field of a nested dataclass with the value of the default instance."""
    changed: dataclasses.Field[Any] = dataclasses.field(
        default_factory=lambda: value, metadata=field.metadata
    )
    changed.name = field.name
    return changed


def _hints(cls: type) -> dict[str, Any]:
    """Resolve the annotations. Raise an error that names the field if one cannot be resolved."""
    try:
        return typing.get_type_hints(cls)
    except Exception as error:
        name = _unresolved_field(cls)
        raise ArgsError(f"{error}. Import the type at the top of the module.").under(name) from None


def _unresolved_field(cls: type) -> str:
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


def _refuse_init_vars(cls: type) -> None:
    """Raise for an `InitVar` without a default: it is not a field, so it would get no value."""
    for name, field in vars(cls).get("__dataclass_fields__", {}).items():
        if field._field_type is dataclasses._FIELD_INITVAR and field.default is dataclasses.MISSING:  # type: ignore[attr-defined]
            raise ArgsError(
                "an InitVar cannot be set from the command line. Make it a field, or give it a default."
            ).under(f"{cls.__name__}.{name}")


def _field_type(annotation: Any) -> _FieldType:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _TYPE_NAMES:
        return _FieldType(_TYPE_NAMES[annotation])
    if origin is Literal:
        kinds = {type(choice) for choice in inner}
        if len(kinds) == 1 and kinds <= {int, str}:
            return _FieldType(_TYPE_NAMES[kinds.pop()], inner)
        raise ArgsError(f"the choices are {inner}. Use only strings or only integers.")
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _FieldType("string", tuple(annotation), enum=annotation)
    if origin in (Union, types.UnionType) and len(inner) == 2 and type(None) in inner:
        field_type = _field_type(inner[0] if inner[1] is type(None) else inner[1])
        if field_type.type == "bool":
            raise ArgsError("a flag is either on or off. Annotate it as bool, not as bool | None.")
        return dataclasses.replace(field_type, optional=True)
    if origin is tuple and inner and Ellipsis not in inner:
        items = [_field_type(one) for one in inner]
        if all(kind.type in SCALARS and not kind.optional and kind.enum is None for kind in items):
            if len({kind.choices for kind in items}) > 1:
                raise ArgsError(f"{annotation}: all items of a tuple must have the same choices, or none.")
            return _FieldType(f"tuple[{','.join(kind.type for kind in items)}]", items[0].choices)
    if origin is dict and inner[0] is str:
        kind = _field_type(inner[1])
        if kind.type in SCALARS and not kind.optional and kind.enum is None:
            return _FieldType(f"dict[{kind.type}]", kind.choices)
    if origin is list or (origin is tuple and inner[1:] == (Ellipsis,)):
        field_type = _field_type(inner[0])
        if field_type.type in ("string", "int", "float", "path") and not field_type.optional:
            as_tuple = origin is tuple
            return _FieldType(
                f"list[{field_type.type}]", field_type.choices, enum=field_type.enum, as_tuple=as_tuple
            )
    raise ArgsError(f"{annotation} cannot be parsed from a command line. Use {_SUPPORTED}.")


def _parameter(field: dataclasses.Field[Any], field_type: _FieldType, prefix: str = "") -> Parameter:
    default = default_of(field)
    missing = default is dataclasses.MISSING
    declared = dict(field.metadata.get(METADATA_KEY, {"kind": "argument" if missing else "option"}))
    if field.name.startswith("_"):
        raise ArgsError(
            "a name cannot start with an underscore. Rename it, or exclude it with field(init=False)."
        )
    if prefix and declared["kind"] == "argument":
        raise ArgsError("a nested field cannot be a positional argument. Give it a default.")
    if declared.get("choices") == ():
        raise ArgsError("choices=[] allows no value. Add choices, or remove it.")
    declared["choices"] = declared.get("choices") or field_type.choices
    declared["env"] = _variable_name(declared.get("env"))
    is_list = field_type.type.startswith("list[")
    is_repeatable = is_list or field_type.type.startswith("dict[")
    if missing and declared["kind"] == "option" and is_repeatable and not field_type.optional:
        default = [] if is_list else {}
    parameter = Parameter(
        name=prefix + field.name,
        type=field_type.type,
        default=None if default is dataclasses.MISSING else default,
        required=missing and not field_type.optional,
        variadic=declared["kind"] == "argument" and is_list,
        as_tuple=field_type.as_tuple,
        optional=field_type.optional,
        **declared,
    )
    check = _check_option if parameter.kind == "option" else _check_argument
    check(parameter, field_type, missing=missing)
    if not missing:
        _check_default(parameter, field_type)
    _check_values(parameter, field_type)
    return parameter


def _variable_name(name: str | None) -> str:
    if name is not None and not _VARIABLE_NAME.match(name):
        raise ArgsError(f"env={name!r} is not a valid variable name. Use letters, digits and underscores.")
    return name or ""


def _check_option(parameter: Parameter, field_type: _FieldType, *, missing: bool) -> None:
    if missing and not field_type.optional and not parameter.is_repeatable and parameter.takes_value:
        raise ArgsError("an option needs a default. Add one, make it T | None, or use argument().")
    if parameter.bare is not None and not field_type.optional:
        raise ArgsError("`bare` needs an optional field (T | None). Remove it, or change the annotation.")
    if parameter.type == "bool" and parameter.choices:
        raise ArgsError("a flag cannot have choices.")
    if parameter.short and len(parameter.short) != 1:
        raise ArgsError(f"short={parameter.short!r} must be one letter.")
    if parameter.short and not (parameter.short.isascii() and parameter.short.isalpha()):
        raise ArgsError(f"short={parameter.short!r} must be a letter from a to z or A to Z.")


def _check_argument(parameter: Parameter, field_type: _FieldType, *, missing: bool) -> None:
    if parameter.type == "bool":
        raise ArgsError("a bool cannot be positional. Make it an option: option(False).")
    if parameter.is_dict or parameter.is_tuple:
        kind = "dict" if parameter.is_dict else "tuple"
        raise ArgsError(f"a {kind} cannot be positional. Give it a default, which makes it an option.")


def _check_default(parameter: Parameter, field_type: _FieldType) -> None:
    """Raise unless the default is a list, a single value or None, as the annotation says."""
    default = parameter.default
    if default is None:
        if not field_type.optional:
            raise ArgsError(
                "the default is None, but the field is not optional. "
                "Annotate it as T | None, or change the default."
            )
    elif parameter.is_dict or parameter.is_tuple:
        fits = isinstance(default, dict if parameter.is_dict else (list, tuple))
        if not fits or (parameter.is_tuple and len(default) != len(parameter.item_types)):
            kind = "a dict" if parameter.is_dict else f"a tuple of {len(parameter.item_types)} values"
            raise ArgsError(f"the default {default!r} is not {kind}. Change the default or the annotation.")
    elif isinstance(default, (list, tuple, dict)) != parameter.is_list:
        expected = "a list" if parameter.is_list else f"one {parameter.scalar}"
        raise ArgsError(f"the default {default!r} is not {expected}. Change the default or the annotation.")


def _check_values(parameter: Parameter, field_type: _FieldType) -> None:
    """Raise unless the choices, the default and the bare value have the right type and are valid choices."""
    default = parameter.default
    if parameter.is_tuple and default is not None:
        for item, kind in zip(default, parameter.item_types):
            if not _has_type(item, kind):
                raise ArgsError(f"{item!r} is not of type {kind}. Change the value or the annotation.")
    if isinstance(default, dict):
        default = list(default.values())
    defaults = default if isinstance(default, (list, tuple)) else [default]
    defaults = [] if parameter.is_tuple and not parameter.choices else defaults
    values = [value for value in (*parameter.choices, *defaults, parameter.bare) if value is not None]
    for value in values:
        if field_type.enum is not None and not isinstance(value, field_type.enum):
            members = ", ".join(map(str, field_type.enum))
            raise ArgsError(f"{value!r} is not a member of {field_type.enum.__name__}. Use one of {members}.")
        if field_type.enum is None and not _has_type(value, parameter.scalar):
            raise ArgsError(
                f"{value!r} is not of type {parameter.scalar}. Change the value or the annotation."
            )
        if parameter.choices and value not in parameter.choices:
            raise ArgsError(f"{value!r} is not among the choices {list(parameter.choices)}.")


def _has_type(value: object, scalar: str) -> bool:
    """Return whether a value has a scalar type. A bool is not a number, an Enum member not a string."""
    if isinstance(value, bool) or scalar == "bool":
        return isinstance(value, bool) and scalar == "bool"
    accepted = {"int": (int,), "float": (int, float), "string": (str,), "path": (str, Path)}
    return isinstance(value, accepted[scalar]) and not isinstance(value, Enum)


def _check_conflicts(parameters: list[Parameter]) -> None:
    """Raise if the last parameter conflicts with those before it."""
    *before, last = parameters
    if last.kind == "argument":
        arguments = [other for other in before if other.kind == "argument"]
        if arguments and arguments[-1].variadic:
            raise ArgsError(f"it follows {arguments[-1].name!r}, which is variadic and must be last.")
        if last.required and any(not other.required for other in arguments):
            raise ArgsError("a required argument cannot follow an optional one. Give it a default.")
        return
    if last.long in RESERVED_IN_ARGS:
        raise ArgsError(f"--{last.long} is reserved for fdl. Choose another name.")
    if last.short in RESERVED_SHORT and last.short:
        raise ArgsError(f"-{last.short} is reserved for fdl. Choose another letter.")
    for other in before:
        if other.kind == "option" and last.long in (other.long, f"no-{other.long}"):
            raise ArgsError(f"--{last.long} is already used by {other.name!r}.")
        if other.kind == "option" and other.long == f"no-{last.long}":
            raise ArgsError(f"--{other.long}, which would switch it off, is already used by {other.name!r}.")
        if last.short and other.short == last.short:
            raise ArgsError(f"{other.name!r} already uses the short name -{last.short}.")

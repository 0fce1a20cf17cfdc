"""Convert parameters to and from the JSON object that a program prints for `--fdl-schema`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flodl.core.errors import ArgsError
from flodl.core.formats import a_type
from flodl.core.paths import suggestion

from .parameter import RESERVED_LONG, RESERVED_SHORT, TYPES, Parameter, format_value, is_type

_ARGUMENT_KEYS = ("name", "type", "description", "required", "variadic", "default", "choices", "completer")
_OPTION_KEYS = ("type", "description", "default", "choices", "short", "env", "bare", "completer")


@dataclass(frozen=True)
class Schema:
    """The parameters of a program. A strict schema rejects everything else."""

    parameters: tuple[Parameter, ...] = ()
    strict: bool = False

    @property
    def options(self) -> dict[str, Parameter]:
        return {parameter.long: parameter for parameter in self.parameters if parameter.kind == "option"}

    @property
    def arguments(self) -> list[Parameter]:
        return [parameter for parameter in self.parameters if parameter.kind == "argument"]


def to_json(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Return the schema as JSON data: defaults and choices as text, options sorted, empty values omitted.

    >>> to_json([Parameter("lr", "option", "float", default=0.1, short="l")])
    {'options': {'lr': {'type': 'float', 'default': '0.1', 'short': 'l'}}}
    """
    schema = Schema(tuple(parameters))
    arguments = [_describe(argument, _ARGUMENT_KEYS) for argument in schema.arguments]
    options = {name: _describe(option, _OPTION_KEYS) for name, option in sorted(schema.options.items())}
    return {key: value for key, value in {"args": arguments, "options": options}.items() if value}


def _describe(parameter: Parameter, keys: Sequence[str]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": parameter.long,
        "type": parameter.type,
        "description": parameter.help,
        "variadic": parameter.variadic,
        "default": _default(parameter),
        "choices": [format_value(choice) for choice in parameter.choices],
        "short": parameter.short,
        "env": parameter.env,
        "bare": None if parameter.bare is None else format_value(parameter.bare),
        "completer": parameter.completer,
    }
    described = {key: facts[key] for key in keys if facts.get(key) or (key == "bare" and facts[key] == "")}
    if parameter.kind == "argument" and not parameter.required:
        described["required"] = False
    return described


def _default(parameter: Parameter) -> str | None:
    value = parameter.default
    if parameter.group:  # it has no value unless its dataclass has one
        return None
    return None if value is None or value is False or value in ([], (), {}) else format_value(value)


def from_json(data: Any) -> Schema:
    """Parse a schema that a program printed or a manifest contains. Raise `ArgsError` for mistakes in it."""
    _check_keys(data, ("args", "options", "strict"), "the schema")
    arguments, options = data.get("args") or [], data.get("options") or {}
    if not isinstance(arguments, list) or not isinstance(options, Mapping):
        raise ArgsError("in the schema, `args` must be a list and `options` a map.")
    found_arguments = [_argument(item) for item in arguments]
    found_options = [_option(name, item) for name, item in options.items()]
    _check_arguments(found_arguments)
    _check_options(found_options)
    return Schema((*found_arguments, *found_options), strict=data.get("strict") is True)


def _check_keys(data: Any, keys: Sequence[str], where: str) -> None:
    if not isinstance(data, Mapping):
        raise ArgsError(f"{where} is {a_type(data)}. Expected a map with the keys {', '.join(keys)}.")
    for key in data:
        if key not in keys:
            raise ArgsError(
                f"{where} has an unknown key {key!r}. {suggestion(str(key), keys, known_as='keys')}"
            )


def _argument(data: Any) -> Parameter:
    _check_keys(data, _ARGUMENT_KEYS, "an argument in the schema")
    name = str(data.get("name", ""))
    if not name:
        raise ArgsError("an argument in the schema has no name.")
    default = data.get("default")
    if data.get("required") is True and default is not None:
        raise ArgsError(f"<{name}>: an argument cannot be required and have a default. Remove one of them.")
    required = data.get("required", default is None) is True
    return _parameter(name, "argument", data, required=required, variadic=data.get("variadic") is True)


def _option(name: Any, data: Any) -> Parameter:
    data = {} if data is None else data
    _check_keys(data, _OPTION_KEYS, f"--{name} in the schema")
    short, env = str(data.get("short") or ""), str(data.get("env") or "")
    return _parameter(str(name), "option", data, short=short, env=env, bare=data.get("bare"))


def _parameter(name: str, kind: Any, data: Mapping[str, Any], **extra: Any) -> Parameter:
    if not f"_{name}".replace("-", "_").replace(".", "_").isidentifier():
        raise ArgsError(
            f"{name!r} in the schema is not a name. Use letters, digits, hyphens, underscores, dots."
        )
    type_name = data.get("type", "string")
    if not is_type(type_name):
        hint = suggestion(str(type_name), TYPES, known_as="types")
        raise ArgsError(f"{name}: unknown type {type_name!r}. {hint}")
    choices = data.get("choices") or ()
    if not isinstance(choices, (list, tuple)):
        raise ArgsError(f"{name}: `choices` is {choices!r}. Expected a list.")
    return Parameter(
        name=name,
        kind=kind,
        type=type_name,
        help=str(data.get("description") or ""),
        default=data.get("default"),
        choices=tuple(map(format_value, choices)),
        completer=str(data.get("completer") or ""),
        **extra,
    )


def _check_arguments(arguments: list[Parameter]) -> None:
    for index, argument in enumerate(arguments):
        before, name = arguments[:index], argument.name
        if any(other.name == name for other in before):
            raise ArgsError(f"<{name}> appears twice in the schema.")
        if before and before[-1].variadic:
            raise ArgsError(f"<{before[-1].name}> is variadic and must be last, but <{name}> follows it.")
        if argument.required and any(not other.required for other in before):
            raise ArgsError(f"<{name}> is required and cannot follow an optional argument.")


def _check_options(options: list[Parameter]) -> None:
    long_names: dict[str, str] = {}  # by short name
    for option in options:
        long, short = option.long, option.short
        if long in RESERVED_LONG:
            raise ArgsError(f"--{long} is reserved for fdl. Choose another name.")
        if not short:
            continue
        if len(short) != 1 or short in RESERVED_SHORT:
            reason = "reserved for fdl" if len(short) == 1 else "more than one letter"
            raise ArgsError(f"--{long}: the short name -{short} is {reason}.")
        if short in long_names:
            raise ArgsError(f"--{long_names[short]} and --{long} both use the short name -{short}.")
        long_names[short] = long

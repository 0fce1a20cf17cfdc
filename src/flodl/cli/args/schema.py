"""Parameters as the JSON object that a program prints for `--fdl-schema`, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flodl.core.errors import ArgsError
from flodl.core.paths import suggestion

from .parameter import RESERVED_LONG, RESERVED_SHORT, TYPES, Parameter, format_value

_ARGUMENT_KEYS = ("name", "type", "description", "required", "variadic", "default", "choices", "completer")
_OPTION_KEYS = ("type", "description", "default", "choices", "short", "env", "bare", "completer")


@dataclass(frozen=True)
class Schema:
    """What a program takes; `strict` refuses everything else."""

    parameters: tuple[Parameter, ...] = ()
    strict: bool = False

    @property
    def options(self) -> dict[str, Parameter]:
        return {one.long: one for one in self.parameters if one.kind == "option"}

    @property
    def arguments(self) -> list[Parameter]:
        return [one for one in self.parameters if one.kind == "argument"]


def to_json(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Write the schema; defaults and choices are text, options are sorted, what is empty is left out.

    >>> to_json([Parameter("lr", "option", "float", default=0.1, short="l")])
    {'options': {'lr': {'type': 'float', 'default': '0.1', 'short': 'l'}}}
    """
    arguments = [_describe(one, _ARGUMENT_KEYS) for one in parameters if one.kind == "argument"]
    options = {one.long: _describe(one, _OPTION_KEYS) for one in parameters if one.kind == "option"}
    found = {"args": arguments, "options": dict(sorted(options.items()))}
    return {name: value for name, value in found.items() if value}


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
    return None if value is None or value is False or value in ([], ()) else format_value(value)


def from_json(data: Any) -> Schema:
    """Read a schema that a program printed or a manifest holds; what is wrong with it is an error."""
    _known(data, ("args", "options", "strict"), "the schema")
    arguments, options = data.get("args") or [], data.get("options") or {}
    if not isinstance(arguments, list) or not isinstance(options, Mapping):
        raise ArgsError("the schema needs a list `args` and a map `options`.")
    found = [_argument(one) for one in arguments] + [_option(name, one) for name, one in options.items()]
    _check_arguments([one for one in found if one.kind == "argument"])
    _check_options([one for one in found if one.kind == "option"])
    return Schema(tuple(found), strict=data.get("strict") is True)


def _known(data: Any, keys: Sequence[str], where: str) -> None:
    if not isinstance(data, Mapping):
        raise ArgsError(f"{where} is a {type(data).__name__}. Write a map with the keys {', '.join(keys)}.")
    for key in data:
        if key not in keys:
            raise ArgsError(
                f"{where} has an unknown key {key!r}. {suggestion(str(key), keys, known_as='keys')}"
            )


def _argument(data: Any) -> Parameter:
    _known(data, _ARGUMENT_KEYS, "an argument of the schema")
    name = str(data.get("name", ""))
    if not name:
        raise ArgsError("an argument of the schema has no name.")
    default = data.get("default")
    if data.get("required") is True and default is not None:
        raise ArgsError(f"<{name}>: required with a default is a contradiction. Leave one of them out.")
    required = data.get("required", default is None) is True
    return _parameter(name, "argument", data, required=required, variadic=data.get("variadic") is True)


def _option(name: Any, data: Any) -> Parameter:
    data = {} if data is None else data
    _known(data, _OPTION_KEYS, f"--{name} of the schema")
    short, env = str(data.get("short") or ""), str(data.get("env") or "")
    return _parameter(str(name), "option", data, short=short, env=env, bare=data.get("bare"))


def _parameter(name: str, kind: Any, data: Mapping[str, Any], **more: Any) -> Parameter:
    type_name = data.get("type", "string")
    if type_name not in TYPES:
        hint = suggestion(str(type_name), TYPES, known_as="types")
        raise ArgsError(f"{name}: unknown type {type_name!r}. {hint}")
    choices = data.get("choices") or ()
    if not isinstance(choices, (list, tuple)):
        raise ArgsError(f"{name}: `choices` is {choices!r}. Write a list.")
    return Parameter(
        name=name,
        kind=kind,
        type=type_name,
        help=str(data.get("description") or ""),
        default=data.get("default"),
        choices=tuple(map(format_value, choices)),
        completer=str(data.get("completer") or ""),
        **more,
    )


def _check_arguments(arguments: list[Parameter]) -> None:
    for position, one in enumerate(arguments):
        before = arguments[:position]
        if any(other.name == one.name for other in before):
            raise ArgsError(f"<{one.name}> stands twice in the schema.")
        if before and before[-1].variadic:
            raise ArgsError(f"<{before[-1].name}> is variadic and must be last; <{one.name}> follows it.")
        if one.required and any(not other.required for other in before):
            raise ArgsError(f"<{one.name}> is required and cannot follow an optional argument.")


def _check_options(options: list[Parameter]) -> None:
    taken: dict[str, str] = {}
    for one in options:
        if one.long in RESERVED_LONG:
            raise ArgsError(f"--{one.long} is reserved for fdl. Choose another name.")
        if not one.short:
            continue
        if len(one.short) != 1 or one.short in RESERVED_SHORT:
            why = "reserved for fdl" if len(one.short) == 1 else "more than one letter"
            raise ArgsError(f"--{one.long}: the short name -{one.short} is {why}.")
        if one.short in taken:
            raise ArgsError(f"--{taken[one.short]} and --{one.long} both declare short -{one.short}.")
        taken[one.short] = one.long

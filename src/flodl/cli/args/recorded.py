"""Settings as nested values, such as those of the record of a run, and the command line that sets them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flodl.core.errors import ArgsError
from flodl.core.paths import suggestion

from .nested import groups_of
from .parameter import Parameter, format_value


def flattened(values: Mapping[str, Any], cls: type, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Return nested values by dotted name. Raise for an unknown name and for a value of another kind."""
    if not isinstance(values, Mapping):
        raise ArgsError(
            f"the values are {values!r}, not a map. Pass a dict of values by name, such as {{'lr': 0.1}}; "
            "for a dataclass, dataclasses.asdict(settings)."
        )
    known = {parameter.name: parameter for parameter in parameters}
    groups = groups_of(cls)
    found = {}
    for name, value in _flat(values, known, ""):
        if name in groups:
            _check_group(name, value, is_optional=groups[name])
        elif name not in known:
            names = [*known, *groups]
            raise ArgsError(f"there is no setting {name!r}. {suggestion(name, names, known_as='settings')}")
        elif problem := _problem(known[name], value):
            raise ArgsError(f"{name} is {value!r}: {problem}")
        found[name] = value
    return found


def split_absent(
    values: Mapping[str, Any], parameters: Sequence[Parameter]
) -> tuple[frozenset[str], dict[str, Any]]:
    """Return the names of dataclasses that are None, and all other values."""
    names = {parameter.name for parameter in parameters}
    return frozenset(values.keys() - names), {name: values[name] for name in values if name in names}


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


def _check_group(name: str, value: Any, *, is_optional: bool) -> None:
    if value is not None:
        raise ArgsError(f"{name} is {value!r}, but it has settings of its own. Pass a dict of them.")
    if not is_optional:
        raise ArgsError(
            f"{name} is None, but the field is not optional. Leave it out for its defaults, or annotate it "
            "as T | None."
        )


def _problem(parameter: Parameter, value: Any) -> str:
    """Return why a field cannot have a value that its text would hide, or ""."""
    if value is None:
        if parameter.optional:
            return ""
        default = "" if parameter.required else ", leave it out for its default"
        return f"the field is not optional. Pass {_kind(parameter)}{default}, or annotate it as T | None."
    if parameter.type == "bool":
        return "" if isinstance(value, bool) else "expected True or False."
    is_container = isinstance(value, list | tuple | set | frozenset | Mapping)
    if is_container and not (parameter.is_repeatable or parameter.is_tuple):
        return f"expected {_kind(parameter)}."
    if parameter.is_dict and not isinstance(value, Mapping | str):
        return f"expected {_kind(parameter)}."
    if isinstance(value, Mapping | set | frozenset) and not parameter.is_dict:
        return f"expected {_kind(parameter)}."
    items = value.values() if isinstance(value, Mapping) else value if is_container else ()
    if any(item is None for item in items):
        return "an item is None. Remove it."
    return ""


def _kind(parameter: Parameter) -> str:
    if parameter.is_dict:
        return f"a dict of values of type {parameter.scalar}"
    if parameter.is_list:
        return f"a list of values of type {parameter.scalar}"
    return f"a tuple ({parameter.metavar})" if parameter.is_tuple else f"one value of type {parameter.type}"

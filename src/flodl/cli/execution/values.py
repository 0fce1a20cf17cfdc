"""Option values from the command line and the environment, converted by the types of a schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from flodl.cli.args.click_adapter import NEGATIVE_NUMBER
from flodl.cli.args.parameter import Parameter, format_value, split_list
from flodl.cli.args.passthrough import positional_words
from flodl.cli.args.schema import Schema
from flodl.cli.numbers import parse_float
from flodl.core import environment

_BOOLEANS = {
    **dict.fromkeys(("1", "true", "yes", "on", "t", "y"), True),
    **dict.fromkeys(("0", "false", "no", "off", "f", "n"), False),
}


def convert(value: Any, parameter: Parameter) -> Any:
    """Convert text to the type of a parameter. Text that does not fit is returned unchanged.

    >>> convert("1e-4", Parameter("lr", "option", "float"))
    0.0001
    >>> convert("1,2", Parameter("n", "option", "list[int]"))
    [1, 2]
    """
    if not isinstance(value, str):
        return value
    if parameter.is_list:
        item_type = replace(parameter, type=parameter.scalar)
        return [convert(item, item_type) for item in split_list(value)]
    if parameter.is_tuple:
        items = split_list(value)
        if len(items) != len(parameter.item_types):
            return value
        return [convert(item, replace(parameter, type=t)) for item, t in zip(items, parameter.item_types)]
    if parameter.is_dict:
        item_type = replace(parameter, type=parameter.scalar)
        pairs = [item.partition("=") for item in split_list(value)]
        return {key.strip(): convert(text.strip(), item_type) for key, equals, text in pairs if equals}
    if parameter.type == "bool":
        return {"true": True, "false": False}.get(value, value)
    try:
        return {"int": int, "float": parse_float}.get(parameter.type, str)(value)  # type: ignore[operator]
    except ValueError:
        return value


def convert_setting(value: Any, parameter: Parameter) -> Any:
    """Convert a value of the manifest to what the program will receive: `a,b` for a list option is a list.

    >>> convert_setting(True, Parameter("save", "option", "string", bare="runs"))
    'runs'
    """
    if value is True and parameter.takes_value and parameter.bare is not None:
        return convert(parameter.bare, parameter)
    if parameter.is_list and not isinstance(value, (list, dict, bool)):
        return convert(format_value(value), parameter)
    return convert(value, parameter)


def variable_for(flag: str, schema: Schema | None) -> str:
    """Return the environment variable that an option reads, if it is set."""
    parameter = schema.options.get(flag) if schema else None
    return parameter.env if parameter and parameter.env and environment.value_of(parameter.env) else ""


def variable_value(variable: str, parameter: Parameter) -> Any:
    """Convert an environment variable. A flag accepts more words here than in a manifest."""
    text = environment.value_of(variable)
    if parameter.type == "bool":
        return _BOOLEANS.get(text.strip().lower(), text)
    return convert(text, parameter)


def options_in(tail: tuple[str, ...], schema: Schema | None) -> Iterator[tuple[str, Any]]:
    """Yield the options on a forwarded command line with their values, as far as recognizable."""
    shorts = {option.short: option for option in schema.options.values() if option.short} if schema else {}
    words = list(tail[: tail.index("--")] if "--" in tail else tail)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            flag = name[2:]
        elif name.startswith("-") and len(name) == 2 and name[1] in shorts:
            flag = shorts[name[1]].long
        else:
            continue
        option = schema.options.get(flag) if schema else None
        negated = schema.options.get(flag.removeprefix("no-")) if schema and not option else None
        if negated and negated.has_negation:
            yield negated.long, False
            continue
        value_follows = bool(words) and (
            not words[0].startswith("-") or NEGATIVE_NUMBER.match(words[0]) is not None
        )
        takes_value = (
            option.takes_value and (option.bare is None or value_follows) if option else value_follows
        )
        if equals:
            yield flag, value
        elif takes_value and words:
            yield flag, words.pop(0)
        else:
            yield flag, True if option is None or option.bare is None else option.bare


def arguments_in(tail: tuple[str, ...], schema: Schema | None) -> dict[str, Any]:
    """Return the positional arguments of a forwarded command line by name, as far as recognizable."""
    if schema is None or not schema.arguments:
        return {}
    words = positional_words(schema, tail)
    found: dict[str, Any] = {}
    for argument in schema.arguments:
        if words and argument.variadic:
            found[argument.long] = [convert(word, replace(argument, type=argument.scalar)) for word in words]
            words = []
        elif words:
            found[argument.long] = convert(words.pop(0), argument)
    return found

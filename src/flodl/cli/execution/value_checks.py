"""Check the values of a manifest and of the environment against the schema of the entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from flodl.cli.args.parameter import Parameter, find_choice, format_value, has_empty_item, split_list
from flodl.cli.args.schema import Schema
from flodl.cli.numbers import NumberRangeError, parse_float
from flodl.core import environment
from flodl.core.errors import ManifestError
from flodl.core.paths import suggestion

from .settings import Setting
from .values import convert, options_in, variable_for, variable_value


def check_settings(schema: Schema, settings: list[Setting]) -> None:
    """Raise for the first setting that the entry does not accept."""
    for problem in setting_problems(schema, settings):
        raise ManifestError(problem)


def setting_problems(schema: Schema, settings: list[Setting]) -> Iterator[str]:
    """Yield a message for every setting that has a wrong value, or that a strict entry does not know."""
    for setting in settings:
        option = schema.options.get(setting.flag)
        where = f"{setting.origin}: {setting.path}"
        if setting.value is None or (option is None and not schema.strict):
            continue
        if option is None:
            hint = suggestion(setting.flag, schema.options, known_as="options")
            yield f"{where}: the entry has no option --{setting.flag}. {hint}"
        elif problem := _setting_problem(option, setting):
            yield f"{where}: {problem}"


def check_variables(schema: Schema, tail: tuple[str, ...]) -> None:
    """Raise for an invalid environment variable, unless the command line overrides it."""
    on_command_line = {flag for flag, _value in options_in(tail, schema)}
    for flag, option in schema.options.items():
        name = "" if flag in on_command_line else variable_for(flag, schema)
        if not name:
            continue
        value = variable_value(name, option)
        problems = [_item_problem(option, item) for item in (value if isinstance(value, list) else [value])]
        for problem in filter(None, [_empty_item_problem(option, environment.value_of(name)), *problems]):
            raise ManifestError(f"${name}, for --{flag}: {problem}")


def _setting_problem(option: Parameter, setting: Setting) -> str:
    value = setting.value_for(option)
    if setting.path == "ddp.speed_hint":  # it has its own text format
        return ""
    if value is None:
        return ""
    if isinstance(value, dict):
        return _dict_problem(option, value)
    if option.is_tuple and not isinstance(value, bool):
        return _tuple_problem(option, value)
    if isinstance(value, bool) and option.type != "bool" and not option.is_list:
        # An optional value may have a bare form that the schema does not mention.
        is_accepted = not value or setting.is_text or option.default is None
        return "" if is_accepted else f"{format_value(value)} is not a valid {option.type}."
    if isinstance(value, list) and not option.is_list:
        return f"--{option.long} takes one value, not a list of {len(value)}."
    if isinstance(value, str) and (problem := _empty_item_problem(option, value)):
        return problem
    converted = convert(value, option) if isinstance(value, str) else value
    items = converted if isinstance(converted, list) else [converted]
    return next(filter(None, (_item_problem(option, item) for item in items)), "")


def _dict_problem(option: Parameter, value: dict[str, Any]) -> str:
    if not option.is_dict:
        return (
            f"--{option.long} takes one {option.type}, not a map. Its keys are {', '.join(value) or 'none'}."
        )
    problems = ((key, _item_problem(option, item)) for key, item in value.items())
    return next((f"{key}: {problem}" for key, problem in problems if problem), "")


def _tuple_problem(option: Parameter, value: Any) -> str:
    items = split_list(value) if isinstance(value, str) else value if isinstance(value, list) else [value]
    types = option.item_types
    if len(items) != len(types):
        return f"--{option.long} takes {len(types)} values ({option.metavar}), not {len(items)}."
    pairs = zip(types, items)
    return next(filter(None, (_item_problem(replace(option, type=t), item) for t, item in pairs)), "")


def _empty_item_problem(option: Parameter, text: str) -> str:
    return f"{text!r} has an empty item next to a comma." if option.is_list and has_empty_item(text) else ""


def _item_problem(option: Parameter, item: Any) -> str:
    if item is None:
        return "an item is null. Remove it."
    text = format_value(item)
    if option.choices:
        allowed = ", ".join(map(str, option.choices))
        return (
            ""
            if find_choice(text, option.scalar, option.choices) is not None
            else f"{text!r} is not allowed. Choose one of {allowed}."
        )
    if option.type == "bool":
        return "" if isinstance(item, bool) else f"{text!r} is not a valid bool. Use true or false."
    if option.scalar not in ("int", "float"):
        return ""
    try:
        {"int": int, "float": parse_float}[option.scalar](text)  # type: ignore[operator]
    except NumberRangeError as error:
        return f"{text[:40]!r} is not a valid {option.scalar}: {error}."
    except ValueError:
        return f"{text!r} is not a valid {option.scalar}."
    return ""

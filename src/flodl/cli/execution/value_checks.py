"""Holding the values of a manifest, and of the environment, to what the entry takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flodl.cli.args.parameter import Parameter, format_value, has_empty_item
from flodl.cli.args.schema import Schema
from flodl.core import environment
from flodl.core.errors import ManifestError
from flodl.core.paths import suggestion

from .settings import Setting, given_options, typed, variable_for, variable_value


def check_settings(schema: Schema, settings: list[Setting]) -> None:
    """Refuse the first value that the entry would not take."""
    for problem in problems_of(schema, settings):
        raise ManifestError(problem)


def problems_of(schema: Schema, settings: list[Setting]) -> Iterator[str]:
    """Give every value that the entry would not take: unknown if it is strict, of another type, no choice."""
    for setting in settings:
        known = schema.options.get(setting.flag)
        where = f"{setting.origin}: {setting.path}"
        if setting.value is None or (known is None and not schema.strict):
            continue
        if known is None:
            hint = suggestion(setting.flag, schema.options, known_as="options")
            yield f"{where}: the entry takes no option --{setting.flag}. {hint}"
        elif words := _wrong_with(known, setting):
            yield f"{where}: {words}"


def check_variables(schema: Schema, tail: tuple[str, ...]) -> None:
    """Refuse an environment variable that the entry reads and would not take; what is typed comes first."""
    given = {flag for flag, _value in given_options(tail, schema)}
    for flag, known in schema.options.items():
        name = "" if flag in given else variable_for(flag, schema)
        if not name:
            continue
        value = variable_value(name, known)
        wrong = [_wrong(known, item) for item in (value if isinstance(value, list) else [value])]
        for words in filter(None, [_gap(known, environment.value_of(name)), *wrong]):
            raise ManifestError(f"${name}, for --{flag}: {words}")


def _wrong_with(known: Parameter, setting: Setting) -> str:
    value = setting.value
    if isinstance(value, dict):  # it has a text of its own
        return ""
    if isinstance(value, bool) and known.type != "bool" and not known.is_list:
        # An optional value may have a meaning for the bare option, which no schema tells.
        said = not value or setting.is_text or known.default is None
        return "" if said else f"{format_value(value)} is no {known.type}."
    if isinstance(value, list) and not known.is_list:
        return f"--{known.long} takes one value, and this is a list of {len(value)}."
    if isinstance(value, str) and (words := _gap(known, value)):
        return words
    given = typed(value, known) if isinstance(value, str) else value
    return next(
        filter(None, (_wrong(known, one) for one in (given if isinstance(given, list) else [given]))), ""
    )


def _gap(known: Parameter, text: str) -> str:
    return f"{text!r} has an empty item next to a comma." if known.is_list and has_empty_item(text) else ""


def _wrong(known: Parameter, item: Any) -> str:
    if item is None:
        return ""
    if known.choices:
        allowed = ", ".join(map(str, known.choices))
        fits = format_value(item) in known.choices
        return "" if fits else f"{format_value(item)!r} is not allowed. Choose one of {allowed}."
    if known.type == "bool":
        return "" if isinstance(item, bool) else f"{format_value(item)!r} is no bool. Write true or false."
    if known.scalar not in ("int", "float"):
        return ""
    try:
        {"int": int, "float": float}[known.scalar](format_value(item))
    except ValueError:
        return f"{format_value(item)!r} is no {known.scalar}."
    return ""

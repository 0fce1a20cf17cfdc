"""Holding a command line that is only passed on to the schema of the program that will read it."""

from __future__ import annotations

import click
from click.core import ParameterSource

from .clicks import TypedCommand, click_parameter
from .schema import Schema

_ALWAYS = {"help": "h", "version": "V", "fdl-schema": "", "refresh-schema": ""}


def check_tail(schema: Schema, tail: tuple[str, ...], *, title: str) -> None:
    """Refuse values that are not allowed and, if the schema is strict, what it does not know.

    Nothing is required, and any option may stand without a value: the program itself has the last word.
    """
    _lenient(schema, title).make_context(title, list(tail)).close()


def positional_words(schema: Schema, tail: tuple[str, ...]) -> list[str]:
    """Give the words of a command line that are no options and no values of options."""
    names = [click_parameter(one, lenient=True).name for one in schema.arguments]
    with _lenient(schema, "fdl").make_context("fdl", list(tail)) as ctx:
        said = [
            name for name in names if name and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        ]
        given = [ctx.params[name] for name in said]
    return [word for one in given for word in (one if isinstance(one, tuple) else [one])]


def _lenient(schema: Schema, title: str) -> TypedCommand:
    params = [click_parameter(one, lenient=True) for one in schema.parameters]
    params += [
        click.Option(
            [f"always_{name}".replace("-", "_"), f"--{name}", *([f"-{short}"] if short else [])], is_flag=True
        )
        for name, short in _ALWAYS.items()
    ]
    return TypedCommand(
        title,
        params=params,
        add_help_option=False,
        context_settings={"ignore_unknown_options": not schema.strict, "allow_extra_args": not schema.strict},
    )

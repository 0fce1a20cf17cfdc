"""Holding a command line that is only passed on to the schema of the program that will read it."""

from __future__ import annotations

import click
from click.core import ParameterSource

from .click_adapter import TypedCommand, click_parameter
from .schema import Schema

_ALWAYS = {"help": "h", "version": "V", "fdl-schema": "", "refresh-schema": ""}
_QUESTIONS = {f"--{name}" for name in _ALWAYS} | {f"-{short}" for short in _ALWAYS.values() if short}


def check_tail(schema: Schema, tail: tuple[str, ...], *, title: str, is_all: bool = True) -> None:
    """Refuse what the program would refuse, in the same words.

    Values of another type, and those that are no choice, always; with a strict schema also unknown options,
    missing values and wrong arguments. `is_all` is false where the program gets arguments besides these.
    """
    before = tail[: tail.index("--")] if "--" in tail else tail
    complete = schema.strict and is_all and not _QUESTIONS & set(before)
    command = _forwarded(schema, title, complete=complete)
    try:
        command.make_context(title, list(tail)).close()
    except click.UsageError as error:
        # click's parser knows nothing of the context when an option lacks its value.
        error.ctx = error.ctx or click.Context(command, info_name=title)
        raise


def positional_words(schema: Schema, tail: tuple[str, ...]) -> list[str]:
    """Give the words of a command line that are no options and no values of options."""
    names = [click_parameter(one, forwarded=True).name for one in schema.arguments]
    with _forwarded(schema, "fdl", complete=False).make_context("fdl", list(tail)) as ctx:
        said = [
            name for name in names if name and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        ]
        given = [ctx.params[name] for name in said]
    return [word for one in given for word in (one if isinstance(one, tuple) else [one])]


def _forwarded(schema: Schema, title: str, *, complete: bool) -> TypedCommand:
    """Make a command of a schema; a complete command line has every argument that is needed."""
    params = [
        click_parameter(one, forwarded=True, strict=schema.strict if one.kind == "option" else complete)
        for one in schema.parameters
    ]
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

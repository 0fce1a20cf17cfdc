"""Check a command line that is passed through to another program against that program's schema."""

from __future__ import annotations

import click
from click.core import ParameterSource

from .click_adapter import TypedCommand, click_parameter
from .schema import Schema

# Flags that every program may receive, with their short names.
_COMMON_FLAGS = {"help": "h", "version": "V", "fdl-schema": "", "refresh-schema": ""}
_INFO_FLAGS = {f"--{name}" for name in _COMMON_FLAGS} | {
    f"-{short}" for short in _COMMON_FLAGS.values() if short
}


def check_tail(schema: Schema, tail: tuple[str, ...], *, title: str, is_complete: bool = True) -> None:
    """Raise the usage error that the program itself would raise.

    Values of the wrong type and invalid choices are always rejected. A strict schema also rejects unknown
    options, missing values and missing or extra arguments. Pass `is_complete=False` if the program receives
    other arguments in addition to these.
    """
    before_dashes = tail[: tail.index("--")] if "--" in tail else tail
    check_required = schema.strict and is_complete and not _INFO_FLAGS & set(before_dashes)
    command = _command_from(schema, title, check_required=check_required)
    try:
        command.make_context(title, list(tail)).close()
    except click.UsageError as error:
        # click's parser sets no context when an option lacks its value.
        error.ctx = error.ctx or click.Context(command, info_name=title)
        raise


def positional_words(schema: Schema, tail: tuple[str, ...]) -> list[str]:
    """Return the words of a command line that are neither options nor their values."""
    names = [click_parameter(argument, forwarded=True).name for argument in schema.arguments]
    with _command_from(schema, "fdl", check_required=False).make_context("fdl", list(tail)) as ctx:
        present = [
            name for name in names if name and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        ]
        values = [ctx.params[name] for name in present]
    return [word for value in values for word in (value if isinstance(value, tuple) else [value])]


def _command_from(schema: Schema, title: str, *, check_required: bool) -> TypedCommand:
    """Build a click command from a schema; with `check_required`, every required argument must be present."""
    params = [
        click_parameter(
            parameter,
            forwarded=True,
            strict=schema.strict if parameter.kind == "option" else check_required,
        )
        for parameter in schema.parameters
    ]
    params += [
        click.Option(
            [f"always_{name}".replace("-", "_"), f"--{name}", *([f"-{short}"] if short else [])], is_flag=True
        )
        for name, short in _COMMON_FLAGS.items()
    ]
    return TypedCommand(
        title,
        params=params,
        add_help_option=False,
        context_settings={"ignore_unknown_options": not schema.strict, "allow_extra_args": not schema.strict},
    )

"""`Args`: the command line of a dataclass."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import click
from click.core import ParameterSource

from flodl.core import environment

from .click_adapter import TypedCommand, click_parameter
from .dataclass_parser import parameters_of
from .parameter import Parameter, format_value
from .schema import to_json

T = TypeVar("T")
_HELP = ["-h", "--help"]


class _Command(TypedCommand):
    """A typed command that answers `--fdl-schema` and `--help` before it looks at anything else."""

    schema_text = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = args[: args.index("--")] if "--" in args else args
        if not ctx.resilient_parsing and "--fdl-schema" in words:
            click.echo(self.schema_text)
            ctx.exit()
        if not ctx.resilient_parsing and set(words) & set(_HELP):
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)


class Args(Generic[T]):
    """Read the command line of a script into a dataclass.

    A field with a default is an option, one without is a positional argument; `option` and `argument` say
    more. The type of a field decides how its text is read.

    >>> from dataclasses import dataclass, field
    >>> @dataclass
    ... class Train:
    ...     data: Path
    ...     lr: float = 1e-3
    ...     tags: list[str] = field(default_factory=list)
    >>> Args(Train).parse(["digits.pt", "--lr", "1e-4", "--tags", "yes,no"])
    Train(data=PosixPath('digits.pt'), lr=0.0001, tags=['yes', 'no'])
    """

    def __init__(self, dataclass_type: type[T], *, name: str | None = None) -> None:
        self.type = dataclass_type
        self.parameters = parameters_of(dataclass_type)
        self.name = name
        self._fields = {one.name: click_parameter(one) for one in self.parameters}
        self.command = _Command(
            name,
            params=list(self._fields.values()),
            help=_words(dataclass_type),
            callback=self._build,
            context_settings={"help_option_names": _HELP},
        )
        self.command.schema_text = json.dumps(self.schema(), indent=2)

    def schema(self) -> dict[str, Any]:
        """Give what `--fdl-schema` prints."""
        return {**to_json(self.parameters), "strict": True}

    def parse(self, argv: Sequence[str] | None = None) -> T:
        """Give the values of this command line, or of the process.

        Help and schema end the program with code 0; a command line that cannot be understood ends it with
        code 2, after its message and the help on standard error.
        """
        try:
            result = self.command.main(argv, prog_name=self.name, standalone_mode=False)
        except click.UsageError as error:
            self._refuse(error)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(130)
        if not isinstance(result, self.type):
            sys.exit(result if isinstance(result, int) else 0)
        return result

    def _refuse(self, error: click.UsageError) -> NoReturn:
        colour = environment.color_setting()
        # click's parser knows nothing of the context when an option lacks its value.
        ctx = error.ctx or click.Context(self.command, info_name=self.name or Path(sys.argv[0]).name)
        click.echo(f"{click.style('error:', fg='red')} {error.format_message()}", err=True, color=colour)
        click.echo(f"\n{ctx.get_help()}", err=True, color=colour)
        sys.exit(2)

    def _build(self, **_values: Any) -> T:
        ctx = click.get_current_context()
        values = {name: ctx.params[one.name or ""] for name, one in self._fields.items()}
        for one in self.parameters:
            if one.is_list:
                source = ctx.get_parameter_source(self._fields[one.name].name or "")
                is_default = source in (None, ParameterSource.DEFAULT)
                # A default is what it is: nothing to take apart, and None stays None.
                given = one.default if is_default else list(values[one.name])
                values[one.name] = given if given is None else (tuple if one.as_tuple else list)(given)
            elif one.type == "path" and isinstance(values[one.name], str):
                values[one.name] = Path(values[one.name])
        self._publish(ctx, values)
        try:
            return self.type(**values)
        except ValueError as error:  # what a `__post_init__` has against the values
            raise click.UsageError(str(error), ctx=ctx) from error

    def _publish(self, ctx: click.Context, values: dict[str, Any]) -> None:
        """Leave every value with its origin where a run directory looks for it."""
        told = environment.resolved_config()
        table = dict(told)
        for one in self.parameters:
            source = ctx.get_parameter_source(self._fields[one.name].name or "")
            value, inherited = _plain(values[one.name]), told.get(one.long)
            # fdl hands the values of a manifest over as options: their origin is the file, not the flag.
            if inherited is None or not _equal(inherited.get("value"), value):
                origin = _origin(source.name if source else "", one, value)
                table[one.long] = {"value": value, "origin": origin}
        os.environ[environment.RESOLVED_CONFIG] = json.dumps(table)


def _origin(source: str, one: Parameter, value: Any) -> str:
    if source == "ENVIRONMENT":
        return f"${one.env}"
    if source != "COMMANDLINE":
        return "default"
    if one.kind == "argument":
        return f"<{one.long}>"
    return f"--no-{one.long}" if value is False else f"--{one.long}"


def _equal(told: Any, read: Any) -> bool:
    return bool(told == read) or format_value(told) == format_value(read)


def _plain(value: Any) -> Any:
    """Give a value that JSON can hold."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, int, float, type(None))) else format_value(value)


def _words(cls: type) -> str:
    """Give the docstring of a class; the one that dataclass makes up from the fields is none."""
    text = inspect.cleandoc(cls.__doc__ or "")
    return "" if text.startswith(f"{cls.__name__}(") else text

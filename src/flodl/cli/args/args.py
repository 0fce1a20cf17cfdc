"""`Args`, which parses a command line into a dataclass."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import click
from click.core import ParameterSource

from flodl.cli.ctrl_c import stop_with_one_line
from flodl.core import environment
from flodl.core.errors import ArgsError
from flodl.core.files import expand_user
from flodl.core.usage.calls import ArgsCallError, explain_creation, explain_methods

from .click_adapter import TypedCommand, click_parameter
from .dataclass_parser import parameters_of
from .nested import construct, is_unused
from .parameter import Parameter, format_value
from .recorded import flattened, split_absent, words_of
from .schema import to_json

T = TypeVar("T")
_HELP_FLAGS = ["-h", "--help"]
_OF_ARGPARSE = {"prog": "Write name='train.py'."}


class _Command(TypedCommand):
    """A typed command that handles `--fdl-schema` and `--help` before it parses anything else."""

    schema_text = ""

    def _main_shell_completion(self, *arguments: Any, **options: Any) -> None:
        if environment.completion_requested():
            from flodl.cli.shells import install_completion

            install_completion()
        super()._main_shell_completion(*arguments, **options)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = args[: args.index("--")] if "--" in args else args
        if not ctx.resilient_parsing and "--fdl-schema" in words:
            click.echo(self.schema_text)
            ctx.exit()
        if not ctx.resilient_parsing and set(words) & set(_HELP_FLAGS):
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)


@explain_methods(
    ArgsCallError,
    examples={
        "parse": "Write Args(Settings).parse().",
        "from_dict": "Write Args(Settings).from_dict({'lr': 0.1}).",
        "schema": "Write Args(Settings).schema().",
    },
)
@explain_creation(ArgsCallError, elsewhere=_OF_ARGPARSE, example="Write Args(Settings).")
class Args(Generic[T]):
    """Parse the command line of a script into a dataclass.

    A field with a default is an option. A field without one is a positional argument. `option` and
    `argument` add help texts and other details. The type of a field decides how its text is parsed.

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
        self._fields = {parameter.name: click_parameter(parameter) for parameter in self.parameters}
        self.command = _Command(
            name,
            params=list(self._fields.values()),
            help=_docstring(dataclass_type),
            callback=self._build,
            context_settings={"help_option_names": _HELP_FLAGS},
        )
        self.command.schema_text = json.dumps(self.schema(), indent=2)

    def schema(self) -> dict[str, Any]:
        """Return the JSON object that `--fdl-schema` prints."""
        return {**to_json(self.parameters), "strict": True}

    def parse(self, argv: Sequence[str] | None = None) -> T:
        """Parse `argv`, or the command line of the process.

        `--help` and `--fdl-schema` exit with code 0. An invalid command line prints an error and the help on
        standard error, and exits with code 2. If it is the command line of the process, an uncaught
        KeyboardInterrupt (Ctrl-C) will end the program with one line and exit code 130 from now on.
        """
        if not isinstance(self, Args):  # Args.parse([…])
            raise ArgsError("parse needs a dataclass. Call it as Args(Settings).parse().")
        if argv is None:
            stop_with_one_line()
        try:
            result = self.command.main(_words(argv), prog_name=self.name, standalone_mode=False)
        except click.UsageError as error:
            self._exit_with(error)
        except click.Abort:  # Ctrl-C at a prompt, or while the command line is parsed
            raise KeyboardInterrupt from None
        if not isinstance(result, self.type):
            sys.exit(result if isinstance(result, int) else 0)
        return result

    def _exit_with(self, error: click.UsageError) -> NoReturn:
        color = environment.color_setting()
        # click's parser sets no context when an option lacks its value.
        ctx = error.ctx or click.Context(self.command, info_name=self.name or Path(sys.argv[0]).name)
        click.echo(f"{click.style('error:', fg='red')} {error.format_message()}", err=True, color=color)
        click.echo(f"\n{ctx.get_help()}", err=True, color=color)
        sys.exit(2)

    def from_dict(self, values: Mapping[str, Any]) -> T:
        """Build the dataclass from values by name, for example from the record of a run.

        Nested values are maps. Missing values have their defaults; environment variables are not read. None
        is allowed only for an optional field (`T | None`).

        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Train:
        ...     lr: float = 1e-3
        ...     epochs: int = 2
        >>> Args(Train).from_dict({"lr": 0.1})
        Train(lr=0.1, epochs=2)
        """
        absent, flat = split_absent(flattened(values, self.type, self.parameters), self.parameters)
        try:
            with self.command.make_context(self.type.__name__, words_of(flat, self.parameters)) as ctx:
                found = self._values(ctx, flat.keys())
                found |= {name: None for name, value in flat.items() if value is None}
                return self._construct(ctx, found, flat.keys(), absent)
        except click.UsageError as error:
            raise ArgsError(error.format_message()) from None

    def _build(self, **_values: Any) -> T:
        ctx = click.get_current_context()
        sources = {name: ctx.get_parameter_source(field.name or "") for name, field in self._fields.items()}
        given = {name for name, source in sources.items() if source not in (None, ParameterSource.DEFAULT)}
        values = self._values(ctx, given)
        self._publish(ctx, values, given)
        return self._construct(ctx, values, given)

    def _values(self, ctx: click.Context, given: Set[str]) -> dict[str, Any]:
        """Return the value of every parameter: the parsed one, or the default; paths without `~`."""
        values = {}
        for parameter in self.parameters:
            name = parameter.name
            value = ctx.params[self._fields[name].name or ""] if name in given else parameter.default
            if value is not None and (parameter.is_repeatable or parameter.is_tuple):
                value = _container(parameter)(value)
            elif parameter.type == "path" and isinstance(value, str):
                value = Path(value)
            elif parameter.type == "bool":
                value = bool(value)
            values[name] = _in_home(value)
        return values

    def _construct(
        self, ctx: click.Context, values: Mapping[str, Any], given: Set[str], absent: Set[str] = frozenset()
    ) -> T:
        try:
            result = construct(self.type, values, given, absent)
        except ValueError as error:  # raised by `__post_init__`
            raise click.UsageError(str(error), ctx=ctx) from error
        assert isinstance(result, self.type)
        return result

    def _publish(self, ctx: click.Context, values: dict[str, Any], given: Set[str]) -> None:
        """Record every value with its origin in the environment, where the trainer finds it."""
        inherited = environment.resolved_config()
        table = dict(inherited)
        for parameter in self.parameters:
            if is_unused(parameter, given):
                continue
            source = ctx.get_parameter_source(self._fields[parameter.name].name or "")
            value, known = _to_json(values[parameter.name]), inherited.get(parameter.long)
            # fdl passes the values of a manifest as options: their origin is the file, not the flag.
            if known is None or not _equal(known.get("value"), value):
                origin = _origin(source.name if source else "", parameter, value)
                table[parameter.long] = {"value": value, "origin": origin}
        os.environ[environment.RESOLVED_CONFIG] = json.dumps(table)


def _words(argv: Sequence[object] | None) -> list[str] | None:
    """Return a command line as a list of strings; numbers and paths are converted."""
    if argv is None:
        return None
    if isinstance(argv, str) or not isinstance(argv, Iterable):
        raise ArgsError(f"argv is {argv!r}. Pass a list of words, such as ['--lr', '0.1'].")
    words = list(argv)
    for word in words:
        if isinstance(word, bool) or not isinstance(word, str | int | float | os.PathLike):
            raise ArgsError(f"argv contains {word!r}, which is not a word. Pass strings, or leave it out.")
    return [os.fspath(word) if isinstance(word, os.PathLike) else str(word) for word in words]


def _origin(source: str, parameter: Parameter, value: Any) -> str:
    if source == "ENVIRONMENT":
        return f"${parameter.env}"
    if source != "COMMANDLINE":
        return "default"
    if parameter.kind == "argument":
        return f"<{parameter.long}>"
    return f"--no-{parameter.long}" if value is False else f"--{parameter.long}"


def _equal(known: Any, value: Any) -> bool:
    """Return whether a value that fdl passed is the one that was parsed, in which `~` is replaced."""
    shown, parsed = format_value(known), format_value(value)
    return bool(known == value) or parsed in (shown, str(expand_user(shown)))


def _in_home(value: Any) -> Any:
    """Return a value in which `~` at the start of a path is the user's home folder."""
    if isinstance(value, Path):
        return expand_user(value)
    return type(value)(map(_in_home, value)) if type(value) in (list, tuple) else value


def _to_json(value: Any) -> Any:
    """Convert a value to one that JSON can represent."""
    if isinstance(value, dict):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(item) for item in value]
    return value if isinstance(value, (bool, int, float, type(None))) else format_value(value)


def _container(parameter: Parameter) -> type:
    if parameter.is_dict:
        return dict
    return tuple if parameter.as_tuple or parameter.is_tuple else list


def _docstring(cls: type) -> str:
    """Return the docstring of a class, or nothing for the one that `dataclass` generates from the fields."""
    text = inspect.cleandoc(cls.__doc__ or "")
    return "" if text.startswith(f"{cls.__name__}(") else text

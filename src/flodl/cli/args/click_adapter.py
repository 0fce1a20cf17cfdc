"""Turn a `Parameter` into a click option or argument, and parse negative numbers as values."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from flodl.cli.capture import OutputTooLongError, capture
from flodl.cli.numbers import NumberRangeError, parse_float
from flodl.cli.options import HomePath
from flodl.core.formats import counted
from flodl.core.paths import did_you_mean

from .parameter import Parameter, find_choice, format_value, has_empty_item, split_list

_UNSIGNED = r"(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"
NEGATIVE_NUMBER = re.compile(rf"-{_UNSIGNED}(,[-+]?{_UNSIGNED})*\Z")  # or several, in a list or tuple
_MASK = "\0"  # prefix of words that click must not parse as options
_SHORT_WITH_VALUE = re.compile(r"-([A-Za-z])=(.*)\Z", re.DOTALL)
COMPLETER_LIMIT_S = 3


class ListItem(str):
    """One item of a default list. It is not split at commas."""

    __slots__ = ()


class Float(click.types.FloatParamType):
    """click's float, except that a number that is out of range is an error."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str):
            try:
                return parse_float(value)
            except NumberRangeError as error:
                self.fail(f"{value[:40]!r} is not a valid float: {error}.", param, ctx)
            except ValueError:
                pass  # click describes the problem
        return super().convert(value, param, ctx)


FLOAT = Float()


class NumberChoice(click.Choice[Any]):
    """click's choice, except that a number may be written in another way: 1 for 1.0."""

    def __init__(self, choices: Sequence[Any], scalar: str) -> None:
        super().__init__(choices)
        self.scalar = scalar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = find_choice(format_value(value), self.scalar, tuple(self.choices))
        return super().convert(value if found is None else found, param, ctx)


class CommaSeparated(click.ParamType[list[Any]]):
    """A value of a list option. It may contain several items, separated by commas."""

    def __init__(self, inner: click.ParamType[Any]) -> None:
        self.inner = inner
        self.name = inner.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        is_item = not isinstance(value, str) or isinstance(value, ListItem)
        if not is_item and has_empty_item(value):
            self.fail(f"{value!r} has an empty item next to a comma.", param, ctx)
        items = [value] if is_item else split_list(value)
        return [self.inner.convert(item, param, ctx) for item in items]

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        return [rv]

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return self.inner.get_metavar(param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return self.inner.shell_complete(ctx, param, incomplete)


class KeyValues(CommaSeparated):
    """A value of a dict option: one or several pairs `key=value`, separated by commas."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        if isinstance(value, str) and not isinstance(value, ListItem) and has_empty_item(value):
            self.fail(f"{value!r} has an empty item next to a comma.", param, ctx)
        texts = [value] if isinstance(value, ListItem) else split_list(value)
        return [self._pair(text, param, ctx) for text in texts]

    def _pair(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            self.fail(f"{text!r} is not a pair. Write key=value.", param, ctx)
        return key.strip(), self.inner.convert(value.strip(), param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return f"KEY={self.inner.get_metavar(param, ctx) or self.name.upper()}"


class FixedTuple(click.ParamType[tuple[Any, ...]]):
    """A tuple with a fixed number of items, separated by commas."""

    name = "tuple"

    def __init__(self, types: Sequence[click.ParamType[Any]], metavar: str) -> None:
        self.types = types
        self.metavar = metavar

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        items = split_list(str(value))
        if len(items) != len(self.types) or has_empty_item(str(value)):
            expected = f"{len(self.types)} values, separated by commas: {self.metavar}"
            self.fail(f"{value!r} has {counted(len(items), 'value')}. Expected {expected}.", param, ctx)
        return tuple(kind.convert(item, param, ctx) for kind, item in zip(self.types, items))

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return self.metavar


class NumberAwareParser:
    """click's parser, except that `-5` is a value and `-x=5` means `-x 5`."""

    def __init__(self, parser: Any, options: dict[str, click.Option]) -> None:
        self._parser = parser
        self._options = options

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def parse_args(self, args: list[str]) -> tuple[dict[str, Any], list[str], list[click.Parameter]]:
        try:
            values, rest, order = self._parser.parse_args(args=list(self._masked(args)))
        except click.NoSuchOption as error:
            grouped = self._in_groups(error.option_name)
            if not grouped:
                raise
            message = f"{error.message} {did_you_mean(grouped)}"
            raise click.NoSuchOption(error.option_name, message, ctx=error.ctx) from None
        return {name: _unmask(value) for name, value in values.items()}, _unmask(rest), order

    def _in_groups(self, name: str) -> list[str]:
        """Return the options of groups that end with a name: `--optim.lr` for `--lr`."""
        ending = f".{name.removeprefix('--')}"
        return [option for option in self._options if option.endswith(ending)]

    def _masked(self, args: list[str]) -> Iterator[str]:
        value_is_next = False
        for position, word in enumerate(args):
            short = _SHORT_WITH_VALUE.match(word)
            if value_is_next and word in self._options:
                _refuse_option_as_value(self._options[args[position - 1]], args[position - 1], word)
            if word == "--" and not value_is_next:
                yield from args[position:]
                return
            name, equals, value = word.partition("=")
            if NEGATIVE_NUMBER.match(word):
                yield _MASK + word
            elif short and not value_is_next and f"-{short[1]}" in self._options:
                long = max(self._options[f"-{short[1]}"].opts, key=len)
                yield f"{long}={_MASK}{short[2]}"
            elif equals and value and not value_is_next and self._takes_value(name):
                yield f"{name}={_MASK}{value}"  # click would parse `-1` as an option here too
            else:
                yield word
            option = self._options.get(word)
            value_is_next = not value_is_next and option is not None and not option.is_flag

    def _takes_value(self, name: str) -> bool:
        return name in self._options and not self._options[name].is_flag


def _refuse_option_as_value(option: click.Option, name: str, word: str) -> None:
    """Raise if an option would take the next option as its value. Options with an optional value never do."""
    if not option._flag_needs_value:
        raise click.BadOptionUsage(
            name,
            f"Option {name!r} requires an argument, but {word!r} follows. "
            f"If that is the value, write {name}={word}.",
        )


def _unmask(value: Any) -> Any:
    if isinstance(value, str):
        return value.removeprefix(_MASK)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_unmask, value))
    return value


class TypedCommand(click.Command):
    """A command that lists its arguments in the help and accepts negative numbers as values."""

    def make_parser(self, ctx: click.Context) -> Any:
        options = {
            name: option
            for option in self.get_params(ctx)
            if isinstance(option, click.Option)
            for name in option.opts
        }
        return NumberAwareParser(super().make_parser(ctx), options)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [
            (argument.make_metavar(ctx), getattr(argument, "explanation", ""))
            for argument in self.get_params(ctx)
            if isinstance(argument, click.Argument)
        ]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)


class ExplainedArgument(click.Argument):
    """A positional argument with a help text."""

    def __init__(self, declarations: Sequence[str], *, explanation: str, **settings: Any) -> None:
        super().__init__(declarations, **settings)
        self.explanation = explanation


def click_parameter(parameter: Parameter, *, forwarded: bool = False, strict: bool = True) -> click.Parameter:
    """Convert a parameter to a click option or argument.

    A forwarded parameter checks a command line for another program: it has no default and ignores the
    environment. Unless it is strict, nothing is required and every option may omit its value.
    """
    if parameter.kind == "argument":
        return _click_argument(parameter, forwarded=forwarded, strict=strict)
    names = [_identifier(parameter), f"--{parameter.long}"]
    note = "(repeat or comma-separate)" if parameter.is_repeatable else ""
    settings: dict[str, Any] = {"help": f"{parameter.help} {note}".strip() or None}
    if parameter.short:
        names.append(f"-{parameter.short}")
    if parameter.type == "bool":
        return _click_flag(parameter, names, settings, forwarded=forwarded)
    settings |= {"type": _value_type(parameter), "shell_complete": _completer(parameter)}
    if not forwarded:
        settings |= {
            "default": parameter.default,
            "show_default": parameter.default not in (None, [], (), {}),
            "show_envvar": True,
        }
        settings["envvar"] = parameter.env or None
    if parameter.is_list:
        if isinstance(settings.get("default"), (list, tuple)):
            settings["default"] = [
                ListItem(format_value(item)) if isinstance(item, (str, Enum)) else item
                for item in settings["default"]
            ]
        settings |= {"multiple": True, "type": CommaSeparated(settings["type"]), "callback": _flatten}
    elif parameter.is_dict:
        if isinstance(settings.get("default"), dict):
            pairs = settings["default"].items()
            settings["default"] = [ListItem(f"{key}={format_value(item)}") for key, item in pairs]
        settings |= {"multiple": True, "type": KeyValues(settings["type"]), "callback": _unique_pairs}
    elif parameter.bare is not None or not strict:
        bare = _placeholder(parameter) if parameter.bare is None else parameter.bare
        settings |= {"is_flag": False, "flag_value": bare}
    return click.Option(names, **settings)


def _identifier(parameter: Parameter) -> str:
    return f"field_{parameter.name}".replace("-", "_").replace(".", "__dot__")


def _click_flag(
    parameter: Parameter, names: list[str], settings: dict[str, Any], *, forwarded: bool
) -> click.Option:
    if parameter.has_negation:
        names[1] = f"--{parameter.long}/--no-{parameter.long}"
        is_on = parameter.default in (True, "true")
        settings |= {"default": is_on, "show_default": f"--{parameter.long}" if is_on else False}
    if parameter.env and not forwarded:
        settings |= {"envvar": parameter.env, "show_envvar": True}
    return click.Option(names, is_flag=True, **settings)


def _placeholder(parameter: Parameter) -> Any:
    """Return a valid value for an option that was typed without one."""
    value = parameter.choices[0] if parameter.choices else {"int": 0, "float": 0.0}.get(parameter.scalar, "")
    return (value,) * len(parameter.item_types) if parameter.is_tuple else value


def _click_argument(parameter: Parameter, *, forwarded: bool, strict: bool) -> click.Parameter:
    metavar = f"<{parameter.long}>{'...' if parameter.variadic else ''}"
    help_text = parameter.help
    if parameter.choices:
        help_text = f"{help_text}  [{'|'.join(map(str, parameter.choices))}]".strip()
    if parameter.default not in (None, [], ()):
        help_text = f"{help_text}  [default: {parameter.default}]".strip()
    no_default = forwarded or parameter.variadic or parameter.default is None
    settings: dict[str, Any] = {} if no_default else {"default": parameter.default}
    return ExplainedArgument(
        [_identifier(parameter)],
        explanation=help_text,
        type=_value_type(parameter) if strict or parameter.choices else click.STRING,
        metavar=metavar if parameter.required else f"[{metavar}]",
        required=parameter.required and strict,
        nargs=-1 if parameter.variadic else 1,
        shell_complete=_completer(parameter),
        **settings,
    )


def _value_type(parameter: Parameter) -> click.ParamType[Any]:
    if parameter.is_tuple:
        types = [_scalar_type(kind, parameter.choices) for kind in parameter.item_types]
        return FixedTuple(types, parameter.metavar)
    return _scalar_type(parameter.scalar, parameter.choices)


def _scalar_type(scalar: str, choices: Sequence[Any]) -> click.ParamType[Any]:
    if choices:
        return NumberChoice(choices, scalar) if scalar in ("int", "float") else click.Choice(choices)
    if scalar == "path":
        return HomePath()
    scalars: dict[str, click.ParamType[Any]] = {"int": click.INT, "float": FLOAT}
    return scalars.get(scalar, click.STRING)


def _flatten(_ctx: click.Context, _option: click.Parameter, values: Sequence[list[Any]]) -> list[Any]:
    return [item for items in values for item in items]


def _unique_pairs(
    _ctx: click.Context, option: click.Parameter, values: Sequence[list[Any]]
) -> list[tuple[str, Any]]:
    pairs = _flatten(_ctx, option, values)
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise click.BadParameter(f"the key {key!r} is given twice.", ctx=_ctx, param=option)
    return pairs


def _completer(parameter: Parameter) -> Callable[..., Any] | None:
    if not parameter.completer:
        return None
    return lambda _ctx, _param, incomplete: [
        CompletionItem(word) for word in run_completer(parameter.completer) if word.startswith(incomplete)
    ]


def run_completer(shell_command: str, folder: Path | None = None) -> list[str]:
    """Run the shell command of a completer and return its lines, or none if it fails."""
    try:
        done = capture(["sh", "-c", shell_command], cwd=folder, timeout_s=COMPLETER_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired, OutputTooLongError):
        return []
    return done.stdout.split("\n")[:-1] if done.code == 0 else []

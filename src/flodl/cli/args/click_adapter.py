"""Parameters as click's own: what it parses, checks, explains and completes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from .parameter import Parameter, format_value, has_empty_piece, split_pieces

NEGATIVE = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\Z")
_MASK = "\0"
_SHORT_WITH_VALUE = re.compile(r"-([A-Za-z])=(.*)\Z", re.DOTALL)
COMPLETER_LIMIT_S = 3


class Whole(str):
    """A piece of a default, which is what it is, commas and all."""

    __slots__ = ()


class Pieces(click.ParamType[list[Any]]):
    """One value of a list option: it may hold several, separated by commas."""

    def __init__(self, inner: click.ParamType[Any]) -> None:
        self.inner = inner
        self.name = inner.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        whole = not isinstance(value, str) or isinstance(value, Whole)
        if not whole and has_empty_piece(value):
            self.fail(f"{value!r} has nothing on one side of a comma.", param, ctx)
        pieces = [value] if whole else split_pieces(value)
        return [self.inner.convert(piece, param, ctx) for piece in pieces]

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        return [rv]

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return self.inner.get_metavar(param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return self.inner.shell_complete(ctx, param, incomplete)


class NumberAwareParser:
    """click's parser, to which `-5` is a value and `-x=5` is `-x 5`."""

    def __init__(self, parser: Any, options: dict[str, click.Option]) -> None:
        self._parser = parser
        self._options = options

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def parse_args(self, args: list[str]) -> tuple[dict[str, Any], list[str], list[click.Parameter]]:
        values, rest, order = self._parser.parse_args(args=list(self._prepared(args)))
        return {name: _unmask(value) for name, value in values.items()}, _unmask(rest), order

    def _prepared(self, args: list[str]) -> Iterator[str]:
        value_is_next = False
        for position, word in enumerate(args):
            short = _SHORT_WITH_VALUE.match(word)
            if value_is_next and word in self._options:
                _refuse_as_value(self._options[args[position - 1]], args[position - 1], word)
            if word == "--" and not value_is_next:
                yield from args[position:]
                return
            name, equals, value = word.partition("=")
            if NEGATIVE.match(word):
                yield _MASK + word
            elif short and not value_is_next and f"-{short[1]}" in self._options:
                long = max(self._options[f"-{short[1]}"].opts, key=len)
                yield f"{long}={_MASK}{short[2]}"
            elif equals and value and not value_is_next and self._takes_value(name):
                yield f"{name}={_MASK}{value}"  # click would take `-1` for an option here too
            else:
                yield word
            option = self._options.get(word)
            value_is_next = not value_is_next and option is not None and not option.is_flag

    def _takes_value(self, name: str) -> bool:
        return name in self._options and not self._options[name].is_flag


def _refuse_as_value(option: click.Option, name: str, word: str) -> None:
    """An option that lacks its value must not swallow the next option; one that may stand bare does not."""
    if not option._flag_needs_value:
        raise click.BadOptionUsage(
            name,
            f"Option {name!r} requires an argument, and {word!r} follows. Write {name}={word} if meant.",
        )


def _unmask(value: Any) -> Any:
    if isinstance(value, str):
        return value.removeprefix(_MASK)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_unmask, value))
    return value


class TypedCommand(click.Command):
    """A command whose help lists its arguments, and which takes negative numbers as they are."""

    def make_parser(self, ctx: click.Context) -> Any:
        options = {
            name: one for one in self.get_params(ctx) if isinstance(one, click.Option) for name in one.opts
        }
        return NumberAwareParser(super().make_parser(ctx), options)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [
            (one.make_metavar(ctx), getattr(one, "explanation", ""))
            for one in self.get_params(ctx)
            if isinstance(one, click.Argument)
        ]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)


class ExplainedArgument(click.Argument):
    """A positional argument with a line for the help."""

    def __init__(self, declarations: Sequence[str], *, explanation: str, **settings: Any) -> None:
        super().__init__(declarations, **settings)
        self.explanation = explanation


def click_parameter(one: Parameter, *, forwarded: bool = False, strict: bool = True) -> click.Parameter:
    """Turn a parameter into click's.

    A forwarded one checks a command line for another program: there are no defaults, and the environment is
    not asked. If it is not strict, nothing is required, and any option may stand bare.
    """
    if one.kind == "argument":
        return _click_argument(one, forwarded=forwarded, strict=strict)
    names = [f"field_{one.name}".replace("-", "_"), f"--{one.long}"]
    note = "(repeat or comma-separate)" if one.is_list else ""
    settings: dict[str, Any] = {"help": f"{one.help} {note}".strip() or None}
    if one.short:
        names.append(f"-{one.short}")
    if one.type == "bool":
        return _click_flag(one, names, settings, forwarded=forwarded)
    settings |= {"type": _value_type(one), "shell_complete": _completer(one)}
    if not forwarded:
        settings |= {
            "default": one.default,
            "show_default": one.default not in (None, [], ()),
            "show_envvar": True,
        }
        settings["envvar"] = one.env or None
    if one.is_list:
        if isinstance(settings.get("default"), (list, tuple)):
            settings["default"] = [
                Whole(format_value(item)) if isinstance(item, (str, Enum)) else item
                for item in settings["default"]
            ]
        settings |= {"multiple": True, "type": Pieces(settings["type"]), "callback": _flatten}
    elif one.bare is not None or not strict:
        settings |= {"is_flag": False, "flag_value": _anything(one) if one.bare is None else one.bare}
    return click.Option(names, **settings)


def _click_flag(
    one: Parameter, names: list[str], settings: dict[str, Any], *, forwarded: bool
) -> click.Option:
    if one.can_be_denied:
        names[1] = f"--{one.long}/--no-{one.long}"
        is_on = one.default in (True, "true")
        settings |= {"default": is_on, "show_default": f"--{one.long}" if is_on else False}
    if one.env and not forwarded:
        settings |= {"envvar": one.env, "show_envvar": True}
    return click.Option(names, is_flag=True, **settings)


def _anything(one: Parameter) -> Any:
    """Give a value that fits an option, for one that stands without."""
    return one.choices[0] if one.choices else {"int": 0, "float": 0.0}.get(one.scalar, "")


def _click_argument(one: Parameter, *, forwarded: bool, strict: bool) -> click.Parameter:
    marks = f"<{one.long}>{'...' if one.variadic else ''}"
    help_text = one.help
    if one.choices:
        help_text = f"{help_text}  [{'|'.join(map(str, one.choices))}]".strip()
    if one.default not in (None, [], ()):
        help_text = f"{help_text}  [default: {one.default}]".strip()
    no_default = forwarded or one.variadic or one.default is None
    settings: dict[str, Any] = {} if no_default else {"default": one.default}
    return ExplainedArgument(
        [f"field_{one.name}".replace("-", "_")],
        explanation=help_text,
        type=_value_type(one) if strict or one.choices else click.STRING,
        metavar=marks if one.required else f"[{marks}]",
        required=one.required and strict,
        nargs=-1 if one.variadic else 1,
        shell_complete=_completer(one),
        **settings,
    )


def _value_type(one: Parameter) -> click.ParamType[Any]:
    if one.choices:
        return click.Choice(one.choices)
    if one.scalar == "path":
        return click.Path(path_type=Path)
    scalars: dict[str, click.ParamType[Any]] = {"int": click.INT, "float": click.FLOAT}
    return scalars.get(one.scalar, click.STRING)


def _flatten(_ctx: click.Context, _option: click.Parameter, values: Sequence[list[Any]]) -> list[Any]:
    return [value for piece in values for value in piece]


def _completer(one: Parameter) -> Callable[..., Any] | None:
    if not one.completer:
        return None
    return lambda _ctx, _param, incomplete: [
        CompletionItem(word) for word in run_completer(one.completer) if word.startswith(incomplete)
    ]


def run_completer(snippet: str, folder: Path | None = None) -> list[str]:
    """Run the shell snippet of a completer and give its lines; a snippet that fails gives none."""
    try:
        done = subprocess.run(
            ["sh", "-c", snippet], cwd=folder, capture_output=True, text=True, timeout=COMPLETER_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []

"""Write docs/cli.md from the commands themselves; a test holds the page to what this gives."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from flodl.cli.commands import SUMMARIES
from flodl.cli.program import program

PAGE = Path(__file__).with_name("cli.md")
HEAD = """\
# The command line

This page is written by `docs/write_cli_reference.py` from the commands themselves.
[The manifest](manifest.md) explains how a project adds commands of its own, and how a script gets typed
arguments.

Exit codes: 0 is success, 1 an error that flodl explains, 2 options that cannot be understood, 130 Ctrl-C. A
command of a project gives the code of what it started, also when that answers Ctrl-C with a code of its own
(75 after a Trainer has saved its run), and 1 if a signal ended it, which is said. Results go to standard
output, trouble to standard error; on a terminal, a line at the end of a command may tell of
[a newer flodl](setup.md#how-do-i-learn-of-a-newer-flodl). Every command explains itself with `-h` or
`--help`. These options stand before the name of a command, and most of them also behind it:

"""
# Said once, at the top: they stand on every command, as do -h and --help.
COMMON = {"--verbose", "--quiet", "--ansi", "--no-ansi"}


def reference() -> str:
    """Give the whole page."""
    with click.Context(program, info_name="fdl", **program.context_settings) as ctx:
        page = HEAD + table(options_of(program))
        page += "\n| command | what it does |\n| --- | --- |\n"
        page += "".join(f"| [fdl {name}](#fdl-{name}) | {words} |\n" for name, words in SUMMARIES.items())
        for name in SUMMARIES:
            module = importlib.import_module(f"flodl.cli.commands.{name.replace('-', '_')}")
            page += "".join(sections(module.command, name, ctx, depth=2))
    return page


def sections(command: click.Command, name: str, parent: click.Context, *, depth: int) -> Iterator[str]:
    """Give the section of a command, and those of the commands in it."""
    with click.Context(command, info_name=name, parent=parent) as ctx:
        usage = command.get_usage(ctx).removeprefix("Usage: ")
        yield f"\n{'#' * depth} {ctx.command_path}\n\n```text\n{' '.join(usage.split())}\n```\n"
        yield f"\n{prose(command.help or '')}\n"
        if command.epilog:
            yield f"\n{prose(command.epilog)}\n"
        own = [option for option in options_of(command) if not set(option.opts) & COMMON]
        if own:
            yield f"\n{table(own)}"
        if isinstance(command, click.Group):
            for inner in command.list_commands(ctx):
                found = command.get_command(ctx, inner)
                assert found is not None
                yield from sections(found, inner, ctx, depth=depth + 1)


def options_of(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def table(options: list[click.Option]) -> str:
    """Give the options as a table."""
    rows = "".join(row(option) for option in options)
    return f"| option | meaning |\n| --- | --- |\n{rows}"


def row(option: click.Option) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    if not option.is_flag and not option.count:
        names += f" {option.metavar or value_name(option)}"
    default = option.default
    shown = type(default) in (int, float, str) and not option.is_flag and not option.count and default != ""
    if isinstance(option.show_default, str):
        default, shown = option.show_default, True
    words = (option.help or "") + (f" Default: {default}." if shown else "")
    return f"| `{cell(names)}` | {cell(words)} |\n"


def value_name(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    return option.type.name.upper().removesuffix(" RANGE")


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def prose(text: str) -> str:
    """Give a docstring as Markdown: what click is told not to wrap becomes a block."""
    parts = []
    for part in inspect.cleandoc(text).split("\n\n"):
        if part.startswith("\b"):
            parts.append("```text\n" + part.removeprefix("\b").strip("\n") + "\n```")
        else:
            parts.append(re.sub(r"\s+", " ", part).strip())
    return "\n\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    print(f"{PAGE}: {len(PAGE.read_text(encoding='utf-8').splitlines())} lines")

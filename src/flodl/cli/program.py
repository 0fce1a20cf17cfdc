"""The top of the command line: its options, and its commands, each imported when it is asked for."""

from __future__ import annotations

import importlib

import click

import flodl
from flodl.core.environment import colour_refused
from flodl.core.paths import suggestion

from .commands import SUMMARIES
from .options import talk_options


class LazyGroup(click.Group):
    """A group that imports `commands/<name>.py` when that command is asked for, and none to list them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUMMARIES:
            return None
        found = importlib.import_module(f"flodl.cli.commands.{cmd_name}").command
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in SUMMARIES and not ctx.resilient_parsing:
            hint = suggestion(name, SUMMARIES, known_as="commands")
            raise click.UsageError(f"there is no command {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


def _print_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"flodl {flodl.__version__}")
        ctx.exit()


_VERSION = click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)


@click.group(
    cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@_VERSION
@talk_options
@click.pass_context
def program(ctx: click.Context) -> None:
    """flodl: models as graphs on PyTorch."""
    if colour_refused():
        ctx.color = False
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())

"""The top-level command: its options, the built-in commands and those of the project."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

import flodl
from flodl.core.environment import color_setting, completion_requested
from flodl.core.errors import FlodlError
from flodl.core.paths import nearest, suggestion

from .commands import SUMMARIES, USE_MANIFEST
from .options import UnknownCommand, no_append_option, output_options
from .project import Project, available_overlays, project_of, select_overlay

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

T = TypeVar("T")
_UNKNOWN = "flodl.cli.unknown"  # set during completion if the command is unknown


class LazyGroup(click.Group):
    """A group that imports `commands/<name>.py` when that command is used, and none to list them.

    A command of the project's manifest takes precedence over a built-in one, unless `--builtin` is given.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            ctx.obj, args = select_overlay(args, SUMMARIES)
        except (FlodlError, OSError):
            if not ctx.resilient_parsing:
                raise
            ctx.obj = Project()
        return super().parse_args(ctx, args)

    def _main_shell_completion(self, *arguments: Any, **options: Any) -> None:
        if completion_requested():
            from .shells import install_completion

            install_completion()
        super()._main_shell_completion(*arguments, **options)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*SUMMARIES, *(name for name in _project_commands(ctx) if name not in SUMMARIES)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in SUMMARIES and (ctx.params.get("builtin") or not _has_own(ctx, cmd_name)):
            module = importlib.import_module(f"flodl.cli.commands.{cmd_name.replace('-', '_')}")
            assert isinstance(module.command, click.Command)
            return module.command
        manifest = project_of(ctx).manifest
        if ctx.params.get("builtin") or manifest is None or cmd_name not in manifest.commands.entries:
            return None
        from .dispatch import ProjectCommand

        return ProjectCommand(cmd_name, manifest)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        found = _ignore_errors_in_completion(ctx, lambda: self.get_command(ctx, args[0]))
        if found is None and not ctx.resilient_parsing:
            kind = "built-in command" if ctx.params.get("builtin") else "command"
            raise UnknownCommand(f"there is no {kind} {args[0]!r}. {_suggest(ctx, args[0])}", ctx)
        if found is None:
            ctx.meta[_UNKNOWN] = True
        return (args[0] if found else None), found, args[1:]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        project, replaced = project_of(ctx), _replaced_names(ctx)
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (f"--builtin {name}" if name in replaced else name, text)
                    for name, text in SUMMARIES.items()
                ]
            )
        try:
            if project.file is None:
                return
            from .project_summary import write_project

            manifest = project.manifest
            assert manifest is not None
            write_project(formatter, manifest, project.overlays())
        except (FlodlError, OSError) as error:
            # The built-in commands have to be shown even if the project is broken.
            click.echo(f"{click.style('error:', fg='red')} {error}", err=True)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from .completion import project_words

        if ctx.meta.get(_UNKNOWN):
            return []
        if not incomplete.startswith("-"):
            known = _ignore_errors_in_completion(ctx, lambda: project_words(project_of(ctx))) or []
            replaced = {item.value for item in known}
            items = [
                CompletionItem(name, help=text) for name, text in SUMMARIES.items() if name not in replaced
            ]
            return [item for item in [*items, *known] if item.value.startswith(incomplete)]
        return click.Command.shell_complete(self, ctx, incomplete)


# Names of other tools for what a built-in command does.
_ELSEWHERE = {
    "new": "`fdl init NAME` creates a project.",
    "create": "`fdl init NAME` creates a project.",
    "compare": "`fdl monitor RUN RUN` compares runs.",
}


def _suggest(ctx: click.Context, name: str) -> str:
    """Return a hint about the known commands; raise if an unknown key of the manifest may hide some."""
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    if ctx.params.get("builtin"):
        return suggestion(name, SUMMARIES, known_as="built-in commands")
    manifest = project_of(ctx).manifest
    if manifest is not None:
        from .manifest.model import ManifestModel
        from .manifest.validation import decode

        decode(ManifestModel, manifest.document)
    own = _project_commands(ctx)
    close = nearest(name, [*own, *SUMMARIES])
    if close or not own:
        return suggestion(name, [*own, *SUMMARIES], known_as="commands")
    assert manifest is not None
    return f"{manifest.path} has {', '.join(own)}; `fdl --help` lists the built-in commands."


def _has_own(ctx: click.Context, name: str) -> bool:
    """Return whether the project has a command with the name of a built-in one.

    `fdl run` is the built-in command, which runs the project's `run`.
    """
    if name == "run":
        return False
    try:
        return name in _project_commands(ctx)
    except (FlodlError, OSError) as error:
        if name not in USE_MANIFEST and not ctx.resilient_parsing:
            note = f"note: {error}\nThis is the built-in `fdl {name}`, because the project cannot be read."
            click.echo(note, err=True)
        return False


def _replaced_names(ctx: click.Context) -> set[str]:
    """Return the names of the built-in commands that the project replaces."""
    try:
        return set(_project_commands(ctx)) & set(SUMMARIES) - {"run"}
    except (FlodlError, OSError):
        return set()


def _project_commands(ctx: click.Context) -> list[str]:
    manifest = project_of(ctx).manifest
    return sorted(manifest.commands.entries) if manifest else []


def _ignore_errors_in_completion(ctx: click.Context, function: Callable[[], T]) -> T | None:
    """Call a function; during completion, return None if it fails."""
    try:
        return function()
    except (FlodlError, OSError):
        if ctx.resilient_parsing:
            return None
        raise


def _print_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"flodl {flodl.__version__}")
        ctx.exit()


def _complete_overlays(ctx: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in available_overlays() if name.startswith(incomplete)]


_VERSION = click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
# select_overlay removes it before click parses the words; it is here for the help and for completion.
_ENV = click.option(
    "--env",
    metavar="NAME",
    expose_value=False,
    shell_complete=_complete_overlays,
    help="Apply the overlay fdl.NAME.yml, as with FDL_ENV=NAME.",
)


@click.group(
    cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@_VERSION
@_ENV
@click.option(
    "--builtin", is_flag=True, help="Run fdl's own command, also if the project has one of that name."
)
@no_append_option
@output_options
@click.pass_context
def program(ctx: click.Context, builtin: bool) -> None:
    """flodl: models as graphs on PyTorch."""
    if ctx.color is None:
        ctx.color = color_setting()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())

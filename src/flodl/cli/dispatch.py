"""Commands of a project as click commands: run, explained and completed by walking the manifest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
from click.shell_completion import CompletionItem

from .manifest.executing import Plan, carry_out, plan
from .manifest.finding import adopt_example
from .manifest.layers import Manifest, load
from .manifest.walking import Place, action_of, walk
from .options import take_no_append, take_talk


class ProjectCommand(click.Command):
    """A command of the manifest; its words are not parsed here, but followed through the manifests."""

    def __init__(self, name: str, manifest: Manifest) -> None:
        super().__init__(name, add_help_option=False)
        self.manifest = manifest

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = list(args)
        # While completing, click would take `--mode=f` apart and keep the name for itself.
        ctx._opt_prefixes.clear()
        return ctx.args

    def invoke(self, ctx: click.Context) -> Any:
        return dispatch(ctx, self.manifest, self.name or "", tuple(ctx.args))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from .completion import words_after

        return words_after(self.manifest, (self.name or "", *ctx.args), incomplete)


def dispatch(ctx: click.Context, manifest: Manifest, name: str, words: tuple[str, ...]) -> int:
    """Do what the words ask for, and give the exit code."""
    place, append = find_place(ctx, manifest, name, words)
    action = action_of(place)
    if action == "help":
        from .pages import help_page

        click.echo(help_page(ctx, place))
        return 0
    if action == "refresh":
        return _refresh(place)
    try:
        what = plan(adopt(place), append=append)
    except click.NoSuchOption as error:
        if error.option_name != "--dry-run":
            raise
        raise click.UsageError(f"{error.format_message()} {_dry_run_hint(place)}", error.ctx) from None
    return carry_out(what)


def _dry_run_hint(place: Place) -> str:
    """Say where the option belongs: behind a name it would be the program's own."""
    env = f"--env {place.manifest.overlay} " if place.manifest.overlay else ""
    return f"To see what would run: fdl {env}run --dry-run {' '.join(place.trail)}"


def planned(ctx: click.Context, manifest: Manifest, name: str, words: tuple[str, ...]) -> Plan:
    """Give what the words would start, without starting it."""
    place, append = find_place(ctx, manifest, name, words)
    return plan(place, append=append)


def find_place(
    ctx: click.Context, manifest: Manifest, name: str, words: tuple[str, ...]
) -> tuple[Place, bool]:
    """Follow the words, without the options that are fdl's own."""
    without_append, words = take_no_append(ctx, take_talk(ctx, words))
    return walk(manifest, name, words), not without_append


def adopt(place: Place) -> Place:
    """Offer to make a real manifest of an example that stands in for one, before anything runs from it."""
    manifest = place.manifest
    real = adopt_example(manifest.path)
    if real == manifest.path:
        return place
    project = None if manifest.folder.resolve() == manifest.project else manifest.project
    again = load(real, overlay=manifest.overlay, source=manifest.overlay_source, project=project)
    return replace(place, manifest=again)


def _refresh(place: Place) -> int:
    from .manifest.schemas import cache_file, refresh

    file = cache_file(place.manifest)
    answer = refresh(place.manifest, file)
    num_options, num_arguments = len(answer.schema.options), len(answer.schema.arguments)
    where = f"kept in {file}" if answer.kept else f"not kept, because {file.parent} cannot be written to"
    click.echo(f"{place.title}: {num_options} options and {num_arguments} arguments, {where}.")
    return 0

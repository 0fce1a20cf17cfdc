"""Commands of a project as click commands: run, explained and completed by walking the manifest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
from click.shell_completion import CompletionItem

from .execution.plan import Plan, make_plan
from .execution.runner import run_plan
from .manifest.discovery import offer_to_copy_example
from .manifest.loader import Manifest, load
from .manifest.lookup import Target, requested_action, resolve_target
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
    target, append = find_target(ctx, manifest, name, words)
    action = requested_action(target)
    if action == "help":
        from .pages import help_page

        click.echo(help_page(ctx, target))
        return 0
    if action == "refresh":
        return _refresh(target)
    try:
        what = make_plan(adopt(target), append=append)
    except click.NoSuchOption as error:
        if error.option_name != "--dry-run":
            raise
        raise click.UsageError(f"{error.format_message()} {_dry_run_hint(target)}", error.ctx) from None
    return run_plan(what)


def _dry_run_hint(target: Target) -> str:
    """Say where the option belongs: behind a name it would be the program's own."""
    env = f"--env {target.manifest.overlay} " if target.manifest.overlay else ""
    return f"To see what would run: fdl {env}run --dry-run {' '.join(target.command_path)}"


def planned(ctx: click.Context, manifest: Manifest, name: str, words: tuple[str, ...]) -> Plan:
    """Give what the words would start, without starting it."""
    target, append = find_target(ctx, manifest, name, words)
    return make_plan(target, append=append)


def find_target(
    ctx: click.Context, manifest: Manifest, name: str, words: tuple[str, ...]
) -> tuple[Target, bool]:
    """Follow the words, without the options that are fdl's own."""
    without_append, words = take_no_append(ctx, take_talk(ctx, words))
    return resolve_target(manifest, name, words), not without_append


def adopt(target: Target) -> Target:
    """Offer to make a real manifest of an example that stands in for one, before anything runs from it."""
    manifest = target.manifest
    real = offer_to_copy_example(manifest.path)
    if real == manifest.path:
        return target
    project = None if manifest.folder.resolve() == manifest.project else manifest.project
    again = load(real, overlay=manifest.overlay, source=manifest.overlay_source, project=project)
    return replace(target, manifest=again)


def _refresh(target: Target) -> int:
    from .execution.entry_schema import cache_file, refresh_schema

    file = cache_file(target.manifest)
    answer = refresh_schema(target.manifest, file)
    num_options, num_arguments = len(answer.schema.options), len(answer.schema.arguments)
    where = f"kept in {file}" if answer.cached else f"not kept, because {file.parent} cannot be written to"
    click.echo(f"{target.title}: {num_options} options and {num_arguments} arguments, {where}.")
    return 0

"""Run, explain or complete a command of the project's manifest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
from click.shell_completion import CompletionItem

from flodl.core.formats import shell_word

from .execution.plan import Plan, make_plan
from .execution.runner import run_plan
from .manifest.discovery import offer_to_copy_example
from .manifest.loader import Manifest, load
from .manifest.lookup import Target, requested_action, resolve_target
from .options import take_no_append, take_output_options

# What the options of fdl run are for, if a program does not have them.
_OPTIONS_OF_RUN = {
    "--dry-run": "To see what would run",
    "--monitor": "For a live page, the flag of fdl run takes no value",
}


class ProjectCommand(click.Command):
    """A command of the manifest; its arguments are resolved through the manifests, not parsed by click."""

    def __init__(self, name: str, manifest: Manifest) -> None:
        super().__init__(name, add_help_option=False)
        self.manifest = manifest

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = list(args)
        # During completion, click would split `--mode=f` and consume the name.
        ctx._opt_prefixes.clear()
        return ctx.args

    def invoke(self, ctx: click.Context) -> Any:
        return dispatch(ctx, self.manifest, self.name or "", tuple(ctx.args))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from .completion import words_after

        return words_after(self.manifest, (self.name or "", *ctx.args), incomplete)


def dispatch(ctx: click.Context, manifest: Manifest, name: str, words: tuple[str, ...]) -> int:
    """Run the command, print its help or refresh its schema; return the exit code."""
    target, append = find_target(ctx, manifest, name, words)
    action = requested_action(target)
    if action == "help":
        from .help_pages import help_page

        click.echo(help_page(ctx, target))
        return 0
    if action == "refresh":
        return _refresh(target)
    try:
        plan = make_plan(_with_real_manifest(target), append=append)
    except click.NoSuchOption as error:
        if error.option_name not in _OPTIONS_OF_RUN:
            raise
        hint = _hint(target, error.option_name)
        raise click.UsageError(f"{error.format_message()} {hint}", error.ctx) from None
    return run_plan(plan)


def _hint(target: Target, option: str) -> str:
    """Return where to put an option of fdl run; after the name it would be an option of the program."""
    env = f"--env {shell_word(target.manifest.overlay)} " if target.manifest.overlay else ""
    words = " ".join(map(shell_word, target.command_path))
    return f"{_OPTIONS_OF_RUN[option]}: fdl {env}run {option} {words}"


def plan_command(ctx: click.Context, manifest: Manifest, name: str, words: tuple[str, ...]) -> Plan:
    """Return what the command would start, without starting it."""
    target, append = find_target(ctx, manifest, name, words)
    return make_plan(target, append=append)


def find_target(
    ctx: click.Context, manifest: Manifest, name: str, words: tuple[str, ...]
) -> tuple[Target, bool]:
    """Return the target of the words, after removing fdl's own options, and whether to append."""
    no_append, words = take_no_append(ctx, take_output_options(ctx, words))
    return resolve_target(manifest, name, words), not no_append


def _with_real_manifest(target: Target) -> Target:
    """If the manifest is an example, offer to copy it to the real one before anything runs."""
    manifest = target.manifest
    path = offer_to_copy_example(manifest.path)
    if path == manifest.path:
        return target
    project = None if manifest.folder.resolve() == manifest.project else manifest.project
    copied = load(path, overlay=manifest.overlay, source=manifest.overlay_source, project=project)
    return replace(target, manifest=copied)


def _refresh(target: Target) -> int:
    from .execution.entry_schema import cache_file, refresh_schema

    file = cache_file(target.manifest)
    result = refresh_schema(target.manifest, file)
    num_options, num_arguments = len(result.schema.options), len(result.schema.arguments)
    where = f"saved in {file}" if result.cached else f"not saved, because {file.parent} is not writable"
    click.echo(f"{target.title}: {num_options} options and {num_arguments} arguments, {where}.")
    return 0

"""`fdl run`: run a project command, or show what it would run."""

from __future__ import annotations

import json
import os
import shlex
from typing import Any

import click
from click.shell_completion import CompletionItem

from flodl.cli.dispatch import dispatch, find_target, plan_command
from flodl.cli.execution.entry_schema import load_schema
from flodl.cli.execution.plan import Plan
from flodl.cli.manifest.command_kind import Kind
from flodl.cli.manifest.loader import Manifest
from flodl.cli.manifest.lookup import resolve_target
from flodl.cli.manifest.model import ManifestModel
from flodl.cli.manifest.render import flow
from flodl.cli.manifest.validation import decode
from flodl.cli.options import no_append_option, output_options
from flodl.cli.project import project_of
from flodl.core import environment
from flodl.core.errors import FlodlError, ManifestError

DEFAULT = "run"  # the command of `fdl run` without a name


class _Run(click.Command):
    """A command that parses only its own leading options, and keeps all later words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        split = next((index for index, word in enumerate(args) if word not in own), len(args))
        super().parse_args(ctx, args[:split])
        ctx.args = args[split:]
        return ctx.args

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        try:
            if (manifest := project_of(ctx).manifest) is not None:
                _write_project(formatter, manifest)
        except (FlodlError, OSError) as error:  # the page of fdl's own options has to appear anyway
            click.echo(f"{click.style('error:', fg='red')} {error}", err=True)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from flodl.cli.completion import project_words, words_after

        manifest = project_of(ctx).manifest
        if ctx.args and manifest:
            name, words = _split_name(manifest, tuple(ctx.args))
            return words_after(manifest, (name, *words), incomplete)
        if incomplete.startswith("-"):
            own = super().shell_complete(ctx, incomplete)
            has_default = manifest is not None and DEFAULT in manifest.commands.entries
            program = words_after(manifest, (DEFAULT,), incomplete) if manifest and has_default else []
            known = {item.value for item in own}
            return [*own, *(item for item in program if item.value not in known)]
        return [item for item in project_words(project_of(ctx)) if item.value.startswith(incomplete)]


@click.command("run", cls=_Run, options_metavar="[--dry-run] [--json] [--monitor] [NAME] [WORDS]...")
@click.option(
    "--dry-run", is_flag=True, help="Show the command and every value with its origin, without running it."
)
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: print one JSON object.")
@click.option(
    "--monitor",
    is_flag=True,
    help="Show the training on a live page, unless the script sets its own monitor.",
)
@no_append_option
@output_options
@click.pass_context
def command(ctx: click.Context, dry_run: bool, as_json: bool, monitor: bool) -> int:
    """Run a command of this project's fdl.yml, or show what would run.

    This is the same as fdl NAME WORDS. Without NAME, the command `run` of the manifest runs.
    The options of this command may also follow NAME, before any `--`. If the program has its own
    --dry-run, start it without the word run; its own --monitor takes precedence.

    This executes code of the project: the command itself or, with --dry-run, only its entry, which may be
    asked for its options (--fdl-schema).
    """
    manifest = project_of(ctx).require()
    name, words = _split_name(manifest, tuple(ctx.args))
    options = _options_after_name(ctx, manifest, name, words, dry_run=dry_run)
    words = _without(words, options)
    dry_run, as_json = dry_run or "--dry-run" in options, as_json or "--json" in options
    if as_json and not dry_run:
        raise click.UsageError("--json requires --dry-run.", ctx)
    if monitor or "--monitor" in options:
        os.environ[environment.MONITOR] = "1"
    if not dry_run:
        return dispatch(ctx, manifest, name, words)
    plan = plan_command(ctx, manifest, name, words)
    for note in plan.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(json.dumps(_facts(plan), indent=2) if as_json else _page(plan))
    return 0


def _write_project(formatter: click.HelpFormatter, manifest: Manifest) -> None:
    """Write the commands of the project, and the options of the one that runs without a name."""
    from flodl.cli.help_pages import write_page
    from flodl.cli.project_summary import summary_of

    names = sorted(manifest.commands.entries)
    if names:
        with formatter.section("Commands of fdl.yml (fdl run NAME --help explains one)"):
            formatter.write_dl([(name, summary_of(manifest, name)) for name in names])
    if DEFAULT in names:
        formatter.write_paragraph()
        formatter.write_text(f"Without NAME, `{DEFAULT}` runs:")
        formatter.write_paragraph()
        write_page(formatter, resolve_target(manifest, DEFAULT, ()), prefix="fdl run")


def _options_after_name(
    ctx: click.Context, manifest: Manifest, name: str, words: tuple[str, ...], *, dry_run: bool
) -> set[str]:
    """Return the options of this command that follow the name of the project command.

    A --json belongs to this command only in a dry run. If --dry-run is in front of the name, the program's
    own --json takes precedence.
    """
    leading = words[: words.index("--")] if "--" in words else words
    options = {"--dry-run", "--json"} & set(leading) if "--dry-run" in leading else set()
    if dry_run and "--json" in leading and not _has_option(ctx, manifest, name, words, "json"):
        options.add("--json")
    if "--monitor" in leading and not _has_option(ctx, manifest, name, words, "monitor"):
        options.add("--monitor")
    return options


def _without(words: tuple[str, ...], removed: set[str]) -> tuple[str, ...]:
    end = words.index("--") if "--" in words else len(words)
    return (*(word for word in words[:end] if word not in removed), *words[end:])


def _has_option(
    ctx: click.Context, manifest: Manifest, name: str, words: tuple[str, ...], option: str
) -> bool:
    """Return whether the program has an option of its own with this name."""
    target, _append = find_target(ctx, manifest, name, words)
    schema = None if target.kind is Kind.RUN else load_schema(target.manifest)
    return schema is not None and option in schema.options


def _split_name(manifest: Manifest, words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    commands = manifest.commands.entries
    if words and (words[0] in commands or not words[0].startswith("-")):
        return words[0], words[1:]
    if DEFAULT in commands:
        return DEFAULT, words
    decode(ManifestModel, manifest.document)
    raise ManifestError(
        f"name a command: {manifest.path} has no command {DEFAULT!r}. "
        f"Its commands: {', '.join(sorted(commands)) or 'none'}."
    )


def _facts(plan: Plan) -> dict[str, Any]:
    return {"command": plan.command, "folder": str(plan.folder), "values": dict(plan.table)}


def _page(plan: Plan) -> str:
    rows = [
        (f"{name}: {entry.get('written') or flow(entry['value'])}", entry["origin"])
        for name, entry in plan.table.items()
    ]
    column = max([12, *(len(text) for text, _ in rows)]) + 2
    lines = [f"# {shlex.join(plan.command)}", f"# in {plan.folder}"]
    return "\n".join([*lines, *(f"{text:<{column}}# {origin}" for text, origin in rows)])

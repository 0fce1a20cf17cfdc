"""`fdl run`: a command of the project, or what it would do."""

from __future__ import annotations

import json
import os
import shlex
from typing import Any

import click
from click.shell_completion import CompletionItem

from flodl.cli.dispatch import dispatch, find_target, planned
from flodl.cli.execution.entry_schema import load_schema
from flodl.cli.execution.plan import Plan
from flodl.cli.manifest.command_kind import Kind
from flodl.cli.manifest.loader import Manifest
from flodl.cli.manifest.model import ManifestModel
from flodl.cli.manifest.render import flow
from flodl.cli.manifest.validation import decode
from flodl.cli.options import no_append_option, talk_options
from flodl.cli.project import project_of
from flodl.core import environment
from flodl.core.errors import ManifestError

DEFAULT = "run"  # the command that `fdl run` alone means


class _Run(click.Command):
    """A command that takes its own options first, and leaves every word after them as it is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        split = next((index for index, word in enumerate(args) if word not in own), len(args))
        super().parse_args(ctx, args[:split])
        ctx.args = args[split:]
        return ctx.args

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from flodl.cli.completion import top_words, words_after

        manifest = project_of(ctx).manifest
        if ctx.args and manifest:
            return words_after(manifest, tuple(ctx.args), incomplete)
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [item for item in top_words(project_of(ctx)) if item.value.startswith(incomplete)]


@click.command("run", cls=_Run, options_metavar="[--dry-run] [--json] [--monitor] [NAME] [WORDS]...")
@click.option(
    "--dry-run", is_flag=True, help="Show the command line and every value with its origin; start nothing."
)
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: print one JSON object.")
@click.option(
    "--monitor", is_flag=True, help="Show the training on a live page, where the script leaves it open."
)
@no_append_option
@talk_options
@click.pass_context
def command(ctx: click.Context, dry_run: bool, as_json: bool, monitor: bool) -> int:
    """Run a command of this project's fdl.yml, or show what would run.

    NAME and what follows it are the words that would stand right behind fdl; here NAME may also be one that
    fdl itself uses. Without a name it is the command `run` of the manifest. The options of this command may
    also stand behind the name, before any `--`; a program that has a --dry-run of its own is
    started without the word run, and one that has a --monitor keeps it.
    """
    manifest = project_of(ctx).require()
    name, words = _named(manifest, tuple(ctx.args))
    asked = _asked_behind(ctx, manifest, name, words)
    words = _without(words, asked)
    dry_run, as_json = dry_run or "--dry-run" in asked, as_json or "--json" in asked
    if as_json and not dry_run:
        raise click.UsageError("--json belongs to --dry-run. Give both, or none.", ctx)
    if monitor or "--monitor" in asked:
        os.environ[environment.MONITOR] = "1"
    if not dry_run:
        return dispatch(ctx, manifest, name, words)
    plan = planned(ctx, manifest, name, words)
    for note in plan.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(json.dumps(_facts(plan), indent=2) if as_json else _page(plan))
    return 0


def _asked_behind(ctx: click.Context, manifest: Manifest, name: str, words: tuple[str, ...]) -> set[str]:
    """Give the options of this command that stand behind the name of the project's."""
    behind = words[: words.index("--")] if "--" in words else words
    asked = {"--dry-run", "--json"} & set(behind) if "--dry-run" in behind else set()
    if "--monitor" in behind and not _has_monitor(ctx, manifest, name, words):
        asked.add("--monitor")
    return asked


def _without(words: tuple[str, ...], taken: set[str]) -> tuple[str, ...]:
    end = words.index("--") if "--" in words else len(words)
    return (*(word for word in words[:end] if word not in taken), *words[end:])


def _has_monitor(ctx: click.Context, manifest: Manifest, name: str, words: tuple[str, ...]) -> bool:
    """Say whether the program has an option --monitor of its own."""
    target, _append = find_target(ctx, manifest, name, words)
    schema = None if target.kind is Kind.RUN else load_schema(target.manifest)
    return schema is not None and "monitor" in schema.options


def _named(manifest: Manifest, words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    commands = manifest.commands.entries
    if words and (words[0] in commands or not words[0].startswith("-")):
        return words[0], words[1:]
    if DEFAULT in commands:
        return DEFAULT, words
    decode(ManifestModel, manifest.document)
    raise ManifestError(
        f"name a command: {manifest.path} has none that is called {DEFAULT!r}. "
        f"It has {', '.join(sorted(commands)) or 'none at all'}."
    )


def _facts(plan: Plan) -> dict[str, Any]:
    return {"command": plan.command, "folder": str(plan.folder), "values": dict(plan.table)}


def _page(plan: Plan) -> str:
    rows = [(f"{name}: {flow(entry['value'])}", entry["origin"]) for name, entry in plan.table.items()]
    column = max([12, *(len(text) for text, _ in rows)]) + 2
    lines = [f"# {shlex.join(plan.command)}", f"# in {plan.folder}"]
    return "\n".join([*lines, *(f"{text:<{column}}# {origin}" for text, origin in rows)])

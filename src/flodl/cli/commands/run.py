"""`fdl run`: a command of the project, or what it would do."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click
from click.shell_completion import CompletionItem

from flodl.cli.dispatch import dispatch, planned
from flodl.cli.manifest.executing import Plan
from flodl.cli.manifest.layers import Manifest
from flodl.cli.manifest.showing import flow
from flodl.cli.options import talk_options
from flodl.cli.project import project_of
from flodl.core.errors import ManifestError

DEFAULT = "run"  # the command that `fdl run` alone means


class _Run(click.Command):
    """A command that takes its own options first, and leaves every word after them as it is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        split = next((place for place, word in enumerate(args) if word not in own), len(args))
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


@click.command("run", cls=_Run, options_metavar="[--dry-run] [--json] [NAME] [WORDS]...")
@click.option(
    "--dry-run", is_flag=True, help="Show the command line and every value with its origin; start nothing."
)
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: print one JSON object.")
@talk_options
@click.pass_context
def command(ctx: click.Context, dry_run: bool, as_json: bool) -> int:
    """Run a command of this project's fdl.yml, or show what would run.

    NAME and what follows it are the words that would stand right behind fdl; here NAME may also be one that
    fdl itself uses. Without a name it is the command `run` of the manifest.
    """
    manifest = project_of(ctx).require()
    name, words = _named(manifest, tuple(ctx.args))
    if not dry_run:
        return dispatch(ctx, manifest, name, words)
    plan = planned(ctx, manifest, name, words)
    click.echo(json.dumps(_facts(plan), indent=2) if as_json else _page(plan))
    return 0


def _named(manifest: Manifest, words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    commands = manifest.commands.entries
    if words and (words[0] in commands or not words[0].startswith("-")):
        return words[0], words[1:]
    if DEFAULT in commands:
        return DEFAULT, words
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

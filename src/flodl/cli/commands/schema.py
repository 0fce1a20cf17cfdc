"""`fdl schema`: what is kept about the options of entries."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from flodl.cli.execution.entry_schema import CachedSchema, cached_schemas, delete_schema, refresh_schema
from flodl.cli.manifest.loader import Manifest, load
from flodl.cli.options import CommandGroup, talk_options
from flodl.cli.project import project_of
from flodl.core.errors import FlodlError, ManifestError
from flodl.core.paths import suggestion


@click.group("schema", cls=CommandGroup, invoke_without_command=True)
@talk_options
@click.pass_context
def command(ctx: click.Context) -> None:
    """List, refresh or clear what is known about the options of entries.

    The option --refresh-schema of a command of the project asks its entry for the first time.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
@talk_options
@click.pass_context
def list_schemas(ctx: click.Context, as_json: bool) -> None:
    """List the schemas that are kept: fresh, stale (something has changed since) or orphan (no manifest)."""
    root = project_of(ctx).require().folder
    rows = [
        {"name": one.name, "path": os.path.relpath(one.file, root), "status": one.status}
        for one in cached_schemas(root)
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        click.echo("No schema is kept. `fdl COMMAND --refresh-schema` asks an entry for its own.")
    for row in [] if as_json else rows:
        click.echo(f"{row['name']:<20} {row['status']:<7} {row['path']}")


@command.command("clear")
@click.argument("name", required=False)
@click.option("--dry-run", is_flag=True, help="Say what would be deleted.")
@talk_options
@click.pass_context
def clear_schemas(ctx: click.Context, name: str | None, dry_run: bool) -> None:
    """Delete the schemas that are kept, or the one of NAME."""
    for one in _chosen(ctx, name):
        if not dry_run:
            delete_schema(one)
        click.echo(f"{'would delete' if dry_run else 'deleted'} {one.file}")


@command.command("refresh")
@click.argument("name", required=False)
@talk_options
@click.pass_context
def refresh_schemas(ctx: click.Context, name: str | None) -> int:
    """Ask the entries again whose schemas are kept, or the one of NAME."""
    failed, chosen = 0, _chosen(ctx, name)
    manifest = project_of(ctx).require()
    for one in chosen:
        try:
            found = _manifest_of(one, project=manifest.project)
            schema = refresh_schema(found, one.file).schema
            click.echo(f"{one.name}: {len(schema.options)} options, {len(schema.arguments)} arguments")
        except FlodlError as error:
            failed += 1
            click.echo(f"{one.name}: {error}", err=True)
    click.echo(f"{len(chosen) - failed} refreshed, {failed} failed.")
    return int(bool(failed))


def _manifest_of(one: CachedSchema, *, project: Path) -> Manifest:
    from flodl.cli.manifest.discovery import manifest_in

    path = manifest_in(one.folder)
    if path is None:
        raise ManifestError(
            f"there is no fdl.yml in {one.folder} any more. `fdl schema clear {one.name}` tidies up."
        )
    return load(path, project=project)


def _chosen(ctx: click.Context, name: str | None) -> list[CachedSchema]:
    known = cached_schemas(project_of(ctx).require().folder)
    chosen = [one for one in known if name in (None, one.name)]
    if name and not chosen:
        hint = suggestion(name, (one.name for one in known), known_as="schemas")
        raise ManifestError(f"no schema is kept for {name!r}. {hint}")
    return chosen

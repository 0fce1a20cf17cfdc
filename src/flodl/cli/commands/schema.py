"""`fdl schema`: list, refresh or delete the cached schemas of entries."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from flodl.cli.execution.entry_schema import CachedSchema, cached_schemas, delete_schema, refresh_schema
from flodl.cli.manifest.loader import Manifest, load
from flodl.cli.options import CommandGroup, output_options
from flodl.cli.project import project_of
from flodl.core.errors import FlodlError, ManifestError
from flodl.core.formats import shell_word
from flodl.core.paths import suggestion


@click.group("schema", cls=CommandGroup, invoke_without_command=True)
@output_options
@click.pass_context
def command(ctx: click.Context) -> None:
    """List, refresh or clear the cached schemas of entries.

    The schema of an entry lists its options. To query an entry for the first time, pass --refresh-schema to
    its command.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
@output_options
@click.pass_context
def list_schemas(ctx: click.Context, as_json: bool) -> None:
    """List the cached schemas: fresh, stale (the source has changed) or orphan (no manifest).

    Nothing of the project is executed.
    """
    root = project_of(ctx).require().folder
    rows = [
        {"name": one.name, "path": os.path.relpath(one.file, root), "status": one.status}
        for one in cached_schemas(root)
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        click.echo("No schema is cached. `fdl COMMAND --refresh-schema` queries an entry.")
    for row in [] if as_json else rows:
        click.echo(f"{row['name']:<20} {row['status']:<7} {row['path']}")


@command.command("clear")
@click.argument("name", required=False)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted.")
@output_options
@click.pass_context
def clear_schemas(ctx: click.Context, name: str | None, dry_run: bool) -> None:
    """Delete the cached schemas, or only that of NAME."""
    for one in _select(ctx, name):
        if not dry_run:
            delete_schema(one)
        click.echo(f"{'would delete' if dry_run else 'deleted'} {one.file}")


@command.command("refresh")
@click.argument("name", required=False)
@output_options
@click.pass_context
def refresh_schemas(ctx: click.Context, name: str | None) -> int:
    """Query the entries with cached schemas again, or only NAME.

    This executes code of the project: each entry is run with --fdl-schema.
    """
    failed, selected = 0, _select(ctx, name)
    manifest = project_of(ctx).require()
    for one in selected:
        try:
            found = _manifest_of(one, project=manifest.project)
            schema = refresh_schema(found, one.file).schema
            click.echo(f"{one.name}: {len(schema.options)} options, {len(schema.arguments)} arguments")
        except FlodlError as error:
            failed += 1
            click.echo(f"{one.name}: {error}", err=True)
    click.echo(f"{len(selected) - failed} refreshed, {failed} failed.")
    return int(bool(failed))


def _manifest_of(one: CachedSchema, *, project: Path) -> Manifest:
    from flodl.cli.manifest.discovery import manifest_in

    path = manifest_in(one.folder)
    if path is None:
        raise ManifestError(
            f"{one.folder} no longer has an fdl.yml. To delete its schema: "
            f"fdl schema clear {shell_word(one.name)}"
        )
    return load(path, project=project)


def _select(ctx: click.Context, name: str | None) -> list[CachedSchema]:
    known = cached_schemas(project_of(ctx).require().folder)
    selected = [one for one in known if name in (None, one.name)]
    if name and not selected:
        hint = suggestion(name, (one.name for one in known), known_as="schemas")
        raise ManifestError(f"no schema is cached for {name!r}. {hint}")
    return selected

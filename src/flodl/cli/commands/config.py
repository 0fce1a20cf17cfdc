"""`fdl config`: show the effective manifest or check it."""

from __future__ import annotations

import json

import click

from flodl.cli.manifest.document import Table
from flodl.cli.manifest.loader import Manifest, load
from flodl.cli.manifest.render import as_yaml, origins_of
from flodl.cli.options import CommandGroup, output_options
from flodl.cli.project import available_overlays, project_of


def _complete_overlays(ctx: click.Context, _argument: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in available_overlays() if name.startswith(incomplete)]


@click.group("config", cls=CommandGroup, invoke_without_command=True)
@output_options
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show every value of fdl.yml with its file and line, or check the file."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("show")
@click.argument("env", required=False, shell_complete=_complete_overlays)
@click.option("--json", "as_json", is_flag=True, help="Print {path: {value, origin}} for programs.")
@output_options
@click.pass_context
def show(ctx: click.Context, env: str | None, as_json: bool) -> int:
    """Show the manifest after merging, each value with its origin.

    ENV names an overlay (fdl.ENV.yml) and takes precedence over --env and FDL_ENV. Unknown keys are shown
    too, and reported on standard error. Nothing of the project is executed.
    """
    from flodl.cli.execution.received import as_received

    manifest = _manifest(ctx, env)
    document = as_received(manifest)
    if as_json:
        click.echo(json.dumps(origins_of(document, manifest.project), indent=2))
    else:
        if manifest.overlay:
            source = f" ({manifest.overlay_source})" if manifest.overlay_source else ""
            click.echo(f"# environment: {manifest.overlay}{source}")
        click.echo(as_yaml(document, manifest.project), nl=False)
    return _report(unknown_keys(manifest))


@command.command("lint")
@click.argument("env", required=False, shell_complete=_complete_overlays)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
@output_options
@click.pass_context
def lint(ctx: click.Context, env: str | None, as_json: bool) -> int:
    """Check the manifest, its overlays and the manifests of its commands.

    Reports unknown keys, contradictions, missing folders, scripts and services, and values of entries,
    presets and sweeps that the entry does not accept. An entry that supports --fdl-schema is run with it;
    nothing else is started. The exit code is 1 if there are errors. Anything that could not be checked, or
    may work on a different machine, is a note on standard error.
    """
    from flodl.cli.commands import SUMMARIES
    from flodl.cli.execution.lint import lint as lint_project
    from flodl.cli.manifest.discovery import require_manifest

    path, project = require_manifest(), project_of(ctx)
    source = "config lint" if env else project.source
    # `fdl run` alone runs the project's own command of that name.
    builtin = frozenset(SUMMARIES) - {"run"}
    found = lint_project(path, overlay=env or project.overlay, source=source, builtin=builtin)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    problems = list(found.problems)
    if as_json:
        click.echo(json.dumps(problems, indent=2))
        return int(bool(problems))
    if not problems:
        click.echo(f"{path}: no problems found.")
    return _report(problems)


def unknown_keys(manifest: Manifest) -> list[str]:
    """Return the problems with the keys and values of this document."""
    from flodl.cli.manifest.model import CommandModel, ManifestModel
    from flodl.cli.manifest.validation import problems_in

    problems = problems_in(ManifestModel, manifest.document)
    for name, node in manifest.commands.entries.items():
        if isinstance(node, Table):
            problems += problems_in(CommandModel, node, where=("commands", name))
    return problems


def _manifest(ctx: click.Context, env: str | None) -> Manifest:
    project = project_of(ctx)
    if not env:
        return project.require()
    from flodl.cli.manifest.discovery import require_manifest

    return load(require_manifest(), overlay=env, source="config show")


def _report(problems: list[str]) -> int:
    for problem in problems:
        click.echo(f"{click.style('error:', fg='red')} {problem}", err=True)
    return int(bool(problems))

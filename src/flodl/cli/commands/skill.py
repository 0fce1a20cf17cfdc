"""`fdl skill`: the porting guide for coding assistants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from flodl.cli.machine.terminal import line_printer
from flodl.cli.options import CommandGroup, GivenPath, output_options
from flodl.cli.project import project_of
from flodl.cli.skill import NAME, TOOLS, Folder, description, detected, read_files
from flodl.cli.skill.content import MAIN
from flodl.cli.skill.tools import DEFAULT
from flodl.core.errors import SetupError
from flodl.core.paths import suggestion


@click.group("skill", cls=CommandGroup, invoke_without_command=True)
@output_options
@click.pass_context
def command(ctx: click.Context) -> None:
    """Teach a coding assistant to port PyTorch code to flodl.

    The skill is the guide "From PyTorch to flodl" in the form that assistants read: a SKILL.md and reference
    files.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@output_options
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List the skill, its files, and the assistants of this project."""
    project = _project_folder(ctx)
    found, files = detected(project), list(read_files())
    tools = [
        {
            "tool": name,
            "detected": name in found,
            "path": str((folder := Folder.below(project / tool.folder)).path),
            "state": folder.state(),
        }
        for name, tool in TOOLS.items()
    ]
    if as_json:
        one = {"skill": NAME, "description": description(), "files": files}
        click.echo(json.dumps({"skills": [one], "tools": tools}))
        return
    click.echo(f"{NAME}: {description()}\n\nFiles:\n" + "\n".join(f"  {name}" for name in files))
    click.echo("\nAssistants:")
    for row in tools:
        mark = ", found in this project" if row["detected"] else ""
        click.echo(f"  {row['tool']:<8} {TOOLS[str(row['tool'])].title}{mark}: {row['state']}")


@command.command()
@click.argument("file", required=False, default=MAIN, shell_complete=lambda *_: list(read_files()))
@output_options
def show(file: str) -> None:
    """Print SKILL.md, or FILE of the skill."""
    files = read_files()
    if file not in files:
        raise SetupError(f"the skill has no file {file!r}. {suggestion(file, files, known_as='files')}")
    click.echo(files[file].decode(), nl=False)


@command.command()
@click.option("--tool", type=click.Choice(list(TOOLS)), help="The assistant; default: those of this project.")
@click.option("--to", type=GivenPath(), help="A folder with skills; the skill becomes a folder in it.")
@click.option("--skill", "name", type=click.Choice([NAME]), default=NAME, help="The skill to install.")
@click.option("--force", is_flag=True, help="Overwrite files that were changed since they were written.")
@click.option("--dry-run", is_flag=True, help="List the files without writing them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@output_options
@click.pass_context
def install(
    ctx: click.Context,
    tool: str | None,
    to: Path | None,
    name: str,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Write the skill where the assistants of this project look for it, or update it.

    By default, for each assistant whose files are in the project (.claude, .cursor, .agents), else for Claude
    Code. Files that you have changed are not overwritten.
    """
    if tool and to:
        raise click.UsageError("--tool and --to are mutually exclusive.")
    echo, project = line_printer(to_stderr=as_json), _project_folder(ctx)
    folders = [Folder.below(to)] if to else _folders(project, tool)
    if not to and not tool and not detected(project):
        echo(f"No assistant was found in {project}, so the skill is for {TOOLS[DEFAULT].title} (see --tool).")
    if not force:
        for folder in folders:
            folder.check_unmodified()
    results: list[dict[str, Any]] = []
    for folder in folders:
        names = folder.outdated() if dry_run else folder.write()
        results.append({"path": str(folder.path), "files": names})
        if not names:
            echo(f"{folder.path} is up to date.")
        else:
            echo(f"{'Would write' if dry_run else 'Wrote'} to {folder.path}:")
            echo("\n".join(f"  {one}" for one in names))
    if as_json:
        click.echo(json.dumps({"skill": name, "installed": results, "written": not dry_run}))


def _folders(project: Path, tool: str | None) -> list[Folder]:
    names = [tool] if tool else detected(project) or [DEFAULT]
    return [Folder.below(project / TOOLS[name].folder) for name in names]


def _project_folder(ctx: click.Context) -> Path:
    from flodl.cli.manifest.discovery import working_folder

    manifest = project_of(ctx).file
    return manifest.parent if manifest else working_folder()

"""`fdl add`: add an extra of flodl to a project, with a program to try it."""

from __future__ import annotations

import json
from typing import Any

import click

from flodl.cli.machine.terminal import line_printer
from flodl.cli.options import output_options
from flodl.cli.project import project_of
from flodl.cli.scaffold.extras import EXTRAS, Addition, add_extra, find_extra
from flodl.cli.scaffold.playground import Playground, plan_playground


def _complete(_ctx: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    return [name for name in EXTRAS if name.startswith(start)]


@click.command("add")
@click.argument("extra", shell_complete=_complete)
@click.option("--playground", is_flag=True, help="Also write a small program to try it (hf).")
@click.option("--dry-run", is_flag=True, help="Show the change without writing it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@output_options
@click.pass_context
def command(ctx: click.Context, extra: str, playground: bool, dry_run: bool, as_json: bool) -> None:
    """Add an optional part of flodl to this project: hf, ray, sweep, trackers or zstd.

    The line for flodl in pyproject.toml or requirements.txt gets the extra, for example flodl[hf]>=0.1. If no
    file lists flodl, the line is added to requirements.txt. Nothing is installed.

    With --playground, the folder flodl-hf gets a program that classifies texts, and fdl.yml a command that
    runs it. The rest of fdl.yml stays as it is.
    """
    from flodl.cli.manifest.discovery import working_folder

    extra = extra.removeprefix("flodl-")
    known = find_extra(extra)
    manifest = project_of(ctx).file
    folder = manifest.parent if manifest else working_folder()
    addition = add_extra(folder, extra)
    program = plan_playground(extra, manifest) if playground else None
    if as_json:
        found = {"path": str(addition.path), "changed": addition.is_changed, "written": not dry_run}
        click.echo(json.dumps(found | (_as_json(program) if program else {})))
    else:
        _describe(extra, addition, program, dry_run=dry_run)
    if not dry_run:
        addition.write()
        if program:
            program.write()
    if as_json:
        return
    install = f"-r {addition.path.name}" if addition.path.name == "requirements.txt" else "-e ."
    next_step = f"fdl {program.folder.name}" if program else known.next_step
    line_printer()(f"\nNext:\n  pip install {install}\n  {next_step}")


def _describe(extra: str, addition: Addition, program: Playground | None, *, dry_run: bool) -> None:
    echo = line_printer()
    if not addition.is_changed:
        echo(f"{addition.path} has the extra {extra} already.")
    else:
        purpose = find_extra(extra).purpose
        echo(f"{'Would add' if dry_run else 'Added'} {extra} ({purpose}) to {addition.path}.")
    if program is None:
        return
    if program.is_new:
        echo(f"{'Would create' if dry_run else 'Created'} {program.folder}.")
    else:
        echo(f"{program.folder} exists already and is left unchanged.")
    for path, _text in program.manifests:
        echo(f"{'Would add' if dry_run else 'Added'} the command {program.folder.name} to {path}.")


def _as_json(program: Playground) -> dict[str, Any]:
    return {
        "playground": str(program.folder),
        "created": program.is_new,
        "files": [str(path) for path, _text in program.files],
        "manifests": [str(path) for path, _text in program.manifests],
    }

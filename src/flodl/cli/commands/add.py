"""`fdl add`: add an extra of flodl to the requirements of a project."""

from __future__ import annotations

import json

import click

from flodl.cli.machine.terminal import line_printer
from flodl.cli.options import output_options
from flodl.cli.project import project_of
from flodl.cli.scaffold.extras import EXTRAS, add_extra, find_extra


def _complete(_ctx: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    return [name for name in EXTRAS if name.startswith(start)]


@click.command("add")
@click.argument("extra", shell_complete=_complete)
@click.option("--dry-run", is_flag=True, help="Show the change without writing it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@output_options
@click.pass_context
def command(ctx: click.Context, extra: str, dry_run: bool, as_json: bool) -> None:
    """Add an optional part of flodl to this project: hf, ray, sweep, trackers or zstd.

    The line for flodl in pyproject.toml or requirements.txt gets the extra, for example flodl[hf]>=0.1. If no
    file lists flodl, the line is added to requirements.txt. Nothing is installed.
    """
    from flodl.cli.manifest.discovery import working_folder

    known = find_extra(extra)
    manifest = project_of(ctx).file
    folder = manifest.parent if manifest else working_folder()
    addition = add_extra(folder, extra)
    if not dry_run:
        addition.write()
    if as_json:
        click.echo(
            json.dumps({"path": str(addition.path), "changed": addition.is_changed, "written": not dry_run})
        )
        return
    echo = line_printer()
    if not addition.is_changed:
        echo(f"{addition.path} has the extra {extra} already.")
    else:
        echo(f"{'Would add' if dry_run else 'Added'} {extra} ({known.purpose}) to {addition.path}.")
    install = f"-r {addition.path.name}" if addition.path.name == "requirements.txt" else "-e ."
    echo(f"\nNext:\n  pip install {install}\n  {known.next_step}")

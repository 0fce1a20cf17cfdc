"""`fdl init`: create a new project."""

from __future__ import annotations

import json

import click

from flodl.cli.machine.terminal import line_printer
from flodl.cli.options import output_options
from flodl.core.formats import shell_word


@click.command("init")
@click.argument("name")
@click.option("--docker", is_flag=True, help="Run the commands in containers: adds Dockerfiles and services.")
@click.option("--native", is_flag=True, help="Run the commands on this machine, the default.")
@click.option(
    "--template",
    type=click.Choice(["digits", "hf"]),
    default="digits",
    help="digits: a small network that reads digits. hf: fine-tune a Hugging Face model.",
)
@click.option("--dry-run", is_flag=True, help="List the files without writing them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@output_options
def command(name: str, docker: bool, native: bool, template: str, dry_run: bool, as_json: bool) -> None:
    """Create the folder NAME with a project that is ready to train.

    It has a model, a training script with typed settings, fdl.yml, a test, and ./fdl to run everything. An
    existing folder is never changed.
    """
    from flodl.cli.manifest.discovery import working_folder
    from flodl.cli.scaffold.project import check_name, project_files, write_project

    if docker and native:
        raise click.UsageError("--docker and --native are mutually exclusive.")
    echo, target = line_printer(to_stderr=as_json), working_folder() / check_name(name)
    if dry_run:
        names = sorted(str(path) for path, _text in project_files(name, docker=docker, template=template))
    else:
        names = write_project(target, docker=docker, template=template)
    echo(f"{'Would create' if dry_run else 'Created'} {target}:\n" + "\n".join(f"  {one}" for one in names))
    if as_json:
        click.echo(json.dumps({"path": str(target), "files": names, "written": not dry_run}))
    elif not dry_run:
        build = "  docker compose build dev   # once\n" if docker else ""
        echo(f"\nNext:\n  cd {shell_word(name)}\n{build}  ./fdl run")

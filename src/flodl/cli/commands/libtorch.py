"""`fdl libtorch`: find, download, compile and activate libtorch for CMake, tch and other C++ builds."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

import click

from flodl.cli.machine import archive, builds, libtorch
from flodl.cli.machine.detection import detect
from flodl.cli.machine.hardware import Hardware
from flodl.cli.machine.store import Store, cannot_write, find_store
from flodl.cli.machine.terminal import confirm, line_printer
from flodl.cli.options import CommandGroup, GivenPath, SuggestingChoice, output_options
from flodl.core.errors import SetupError
from flodl.core.files import expand_user

from .libtorch_build import build as _build

_CUDA = {build.cuda: build.name for build in builds.BUILDS if build.cuda}
_FOLDERS = ("root", "include", "lib", "cmake")


def _complete_variants(_ctx: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Complete the name of a variant."""
    found = (one.variant for one in libtorch.variants(find_store()))
    return [name for name in found if name.startswith(start)]


@click.group("libtorch", cls=CommandGroup, invoke_without_command=True)
@output_options
@click.pass_context
def command(ctx: click.Context) -> None:
    """Use torch from C++: find, show and switch between libtorch folders.

    A torch wheel contains libtorch, so C++ and Rust programs need no second download.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@output_options
def list_(as_json: bool) -> None:
    """List every libtorch."""
    store = find_store()
    active = libtorch.active_variant(store)
    found = [(one, one.variant == active) for one in libtorch.variants(store)]
    if as_json:
        rows = [
            {"variant": one.variant, "active": is_active, "version": one.version, "path": str(one.root)}
            for one, is_active in found
        ]
        click.echo(json.dumps(rows))
        return
    for one, is_active in found:
        click.echo(
            f"  {one.variant}{' (active)' if is_active else ''}  {one.version or 'unknown'}  {one.root}"
        )
    if not found:
        click.echo(
            "No libtorch found. Install torch with `fdl setup`, or an archive with `fdl libtorch download`."
        )


@command.command()
@click.argument("variant", required=False, shell_complete=_complete_variants)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@output_options
def info(variant: str | None, as_json: bool) -> None:
    """Show the active libtorch, or VARIANT: version, CUDA, folders."""
    one = _resolve(variant)
    facts = one.facts()
    if as_json:
        click.echo(json.dumps(facts))
        return
    is_active = one.variant == libtorch.active_variant(find_store())
    rows = {
        "Active" if is_active else "Variant": one.variant,
        "Version": facts["version"] or "unknown",
        "CUDA": facts["cuda"] or "none",
        "Archs": facts["archs"],
        "Source": facts["source"] or "unknown",
        "Folder": one.root,
        "Include": f"{one.include[0]}\n{'':10}{one.include[1]}",
        "Lib": one.lib,
        "CMake": one.cmake,
    }
    for name, value in rows.items():
        click.echo(f"{name + ':':<10}{value}")


@command.command()
@click.argument("folder", metavar="FOLDER", type=SuggestingChoice(_FOLDERS))
@click.option("--variant", help="A variant other than the active one.", shell_complete=_complete_variants)
@output_options
def path(folder: str, variant: str | None) -> None:
    """Print FOLDER (root, include, lib or cmake): cmake -DCMAKE_PREFIX_PATH="$(fdl libtorch path cmake)" …"""
    one = _resolve(variant)
    found = {"root": one.root, "include": one.include[0], "lib": one.lib, "cmake": one.cmake}
    click.echo(found[folder])


@command.command()
@click.option("--variant", help="A variant other than the active one.", shell_complete=_complete_variants)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@output_options
def env(variant: str | None, as_json: bool) -> None:
    """Print the environment for CMake, tch and the loader: eval "$(fdl libtorch env)"."""
    exports = _resolve(variant).exports()
    if as_json:
        click.echo(json.dumps(exports))
        return
    for name, value in exports.items():
        # Existing entries of a search path stay after the new folders.
        rest = f'"${{{name}:+:${name}}}"' if name.endswith("PATH") else ""
        click.echo(f"export {name}={shlex.quote(value)}{rest}")


@command.command()
@click.argument("variant", required=False, shell_complete=_complete_variants)
@output_options
def activate(variant: str | None) -> None:
    """Make VARIANT the active one."""
    store = find_store()
    if not variant:
        raise SetupError(f"missing argument: fdl libtorch activate VARIANT. {_known(store)}")
    one = libtorch.find(store, variant)
    store.activate(one.variant, kind="libtorch")
    line_printer()(f"Active: {one.variant} ({one.root})")


@command.command()
@click.argument("variant", required=False, shell_complete=_complete_variants)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted without deleting it.")
@output_options
def remove(variant: str | None, yes: bool, dry_run: bool) -> None:
    """Delete an unpacked archive."""
    store = find_store()
    if not variant:
        raise SetupError(f"missing argument: fdl libtorch remove VARIANT. {_known(store)}")
    one = libtorch.find(store, variant)
    owner, _, name = one.variant.partition("/")
    if owner == "torch":
        raise SetupError(
            f"{variant} is part of a build of torch. To remove the build: fdl setup --remove {name}"
        )
    if not one.root.is_relative_to(store.root / "libtorch"):
        raise SetupError(f"{variant} ({one.root}) was not installed by `fdl libtorch`, so it is not deleted.")
    if dry_run:
        line_printer()(f"Would delete {one.root}.")
        return
    confirm(f"Delete {one.root}?", yes=yes)
    try:
        shutil.rmtree(one.root)
    except OSError as error:
        raise cannot_write(error) from None
    if store.active("libtorch") == one.variant:
        store.activate(None, kind="libtorch")
    line_printer()(f"Deleted {one.root}.")


@command.command()
@click.option("--cpu", is_flag=True, help="The build without CUDA.")
@click.option("--cuda", type=click.Choice(sorted(_CUDA)), help="The build for this version of CUDA.")
@click.option("--path", "folder", type=GivenPath(), help="The folder to unpack to.")
@click.option("--url", metavar="URL", help="The archive to use: a mirror or a file.")
@click.option("--no-activate", is_flag=True, help="Do not change the active variant.")
@click.option("--force", is_flag=True, help="Download even if the same version exists.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Print the URL and the folder without downloading.")
@output_options
def download(
    cpu: bool,
    cuda: str | None,
    folder: Path | None,
    url: str | None,
    no_activate: bool,
    force: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Download an archive of libtorch for programs that use it without Python."""
    if cpu and cuda:
        raise click.UsageError("--cpu and --cuda are mutually exclusive.")
    store, echo, hardware = find_store(), line_printer(), detect()
    build, reason = _choose(cpu, cuda, hardware)
    file = expand_user(url) if url else None
    file_or_url = file.resolve().as_uri() if file and file.is_file() else url
    source = file_or_url or archive.archive_url(build, hardware)
    default = store.root / "libtorch" / "precompiled" / build.name
    target = Path(os.path.realpath(folder)) if folder else default
    variant = str(target) if folder else f"precompiled/{build.name}"
    echo(f"libtorch {builds.TORCH}, {build.title} ({reason})\n  from {source}\n  to   {target}")
    if dry_run:
        return
    existing = libtorch.Libtorch(variant, target)
    if existing.lib.is_dir() and (existing.version or "").startswith(builds.TORCH) and not force:
        echo("This version exists already. Pass --force to download it again.")
        return
    if folder and target.exists() and not existing.lib.is_dir() and any(target.iterdir()):
        raise SetupError(f"{target} is not empty and does not contain libtorch. Choose a different folder.")
    confirm("Download it?", yes=yes)
    archive.fetch(source, target, echo)
    archive.write_notes(target, build, builds.TORCH, source)
    if not no_activate:
        store.activate(variant, kind="libtorch")
    echo(f"libtorch is in {target}{'' if no_activate else ' and active'}.")


command.add_command(_build)


def _choose(cpu: bool, cuda: str | None, hardware: Hardware) -> tuple[builds.Build, str]:
    if cpu or cuda:
        return builds.find_build(_CUDA[cuda] if cuda else "cpu"), "as requested"
    choice = builds.choose(hardware)
    # ROCm and MPS do not have archives for every version; the CPU archive runs everywhere.
    usable = choice.build if choice.build.cuda else builds.find_build("cpu")
    return usable, choice.reason


def _resolve(variant: str | None) -> libtorch.Libtorch:
    store = find_store()
    return libtorch.find(store, variant) if variant else libtorch.active(store)


def _known(store: Store) -> str:
    names = ", ".join(one.variant for one in libtorch.variants(store))
    return f"Variants: {names}." if names else "No variant is installed yet."

"""`fdl libtorch`: the C++ side of torch, inside a wheel or from an archive, for CMake, tch and the like."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

import click

from flodl.cli.machine import archive, builds, libtorch, store
from flodl.cli.machine.detection import detect
from flodl.cli.machine.hardware import Hardware
from flodl.cli.machine.terminal import confirm, voice
from flodl.cli.options import CommandGroup, talk_options
from flodl.core.errors import SetupError

_CUDA = {build.cuda: build.name for build in builds.BUILDS if build.cuda}
_PLACES = ("root", "include", "lib", "cmake")


def _variants(_ctx: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Complete the name of a variant."""
    found = (one.variant for one in libtorch.variants(store.here()))
    return [name for name in found if name.startswith(start)]


@click.group("libtorch", cls=CommandGroup, invoke_without_command=True)
@talk_options
@click.pass_context
def command(ctx: click.Context) -> None:
    """Use torch from C++: find, show and switch between libtorch folders.

    A torch wheel has libtorch inside, so that C++ and Rust programs need no second download.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@talk_options
def list_(as_json: bool) -> None:
    """Show every libtorch that there is."""
    place = store.here()
    active = libtorch.active_variant(place)
    found = [(one, one.variant == active) for one in libtorch.variants(place)]
    if as_json:
        rows = [
            {"variant": one.variant, "active": used, "version": one.version, "path": str(one.root)}
            for one, used in found
        ]
        click.echo(json.dumps(rows))
        return
    for one, used in found:
        click.echo(f"  {one.variant}{' (active)' if used else ''}  {one.version or 'unknown'}  {one.root}")
    if not found:
        click.echo("There is none. Install torch: fdl setup. Or an archive: fdl libtorch download")


@command.command()
@click.argument("variant", required=False, shell_complete=_variants)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@talk_options
def info(variant: str | None, as_json: bool) -> None:
    """Show the libtorch in use, or VARIANT: version, CUDA, folders."""
    one = _pick(variant)
    facts = one.facts()
    if as_json:
        click.echo(json.dumps(facts))
        return
    used = one.variant == libtorch.active_variant(store.here())
    rows = {
        "Active" if used else "Variant": one.variant,
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
@click.argument("place", type=click.Choice(_PLACES))
@click.option("--variant", help="Another one than the one in use.", shell_complete=_variants)
@talk_options
def path(place: str, variant: str | None) -> None:
    """Print one folder: cmake -DCMAKE_PREFIX_PATH="$(fdl libtorch path cmake)" …"""
    one = _pick(variant)
    found = {"root": one.root, "include": one.include[0], "lib": one.lib, "cmake": one.cmake}
    click.echo(found[place])


@command.command()
@click.option("--variant", help="Another one than the one in use.", shell_complete=_variants)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@talk_options
def env(variant: str | None, as_json: bool) -> None:
    """Print the environment for CMake, tch and the loader: eval "$(fdl libtorch env)"."""
    exports = _pick(variant).exports()
    if as_json:
        click.echo(json.dumps(exports))
        return
    for name, value in exports.items():
        # What a search path holds already stays behind the new folders.
        rest = f'"${{{name}:+:${name}}}"' if name.endswith("PATH") else ""
        click.echo(f"export {name}={shlex.quote(value)}{rest}")


@command.command()
@click.argument("variant", required=False, shell_complete=_variants)
@talk_options
def activate(variant: str | None) -> None:
    """Use VARIANT from now on."""
    place = store.here()
    if not variant:
        raise SetupError(f"name a variant: fdl libtorch activate VARIANT. {_known(place)}")
    one = libtorch.find(place, variant)
    place.activate(one.variant, kind="libtorch")
    voice()(f"Active: {one.variant} ({one.root})")


@command.command()
@click.argument("variant", required=False, shell_complete=_variants)
@click.option("-y", "--yes", is_flag=True, help="Ask nothing.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@talk_options
def remove(variant: str | None, yes: bool, dry_run: bool) -> None:
    """Delete an archive that was unpacked."""
    place = store.here()
    if not variant:
        raise SetupError(f"name a variant: fdl libtorch remove VARIANT. {_known(place)}")
    one = libtorch.find(place, variant)
    owner, _, name = one.variant.partition("/")
    if owner == "torch":
        raise SetupError(f"{variant} is part of a build of torch. Remove that: fdl setup --remove {name}")
    if not one.root.is_relative_to(place.root / "libtorch"):
        raise SetupError(f"{variant} ({one.root}) was not put there by `fdl libtorch download`; it stays.")
    if dry_run:
        voice()(f"Would delete {one.root}.")
        return
    confirm(f"Delete {one.root}?", yes=yes)
    try:
        shutil.rmtree(one.root)
    except OSError as error:
        raise store.cannot_write(error) from None
    if place.active("libtorch") == one.variant:
        place.activate(None, kind="libtorch")
    voice()(f"Deleted {one.root}.")


@command.command()
@click.option("--cpu", is_flag=True, help="The one without CUDA.")
@click.option("--cuda", type=click.Choice(sorted(_CUDA)), help="The one for this version of CUDA.")
@click.option("--path", "folder", type=click.Path(path_type=Path), help="Unpack it there.")
@click.option("--url", metavar="URL", help="Fetch it from there: a mirror, or a file.")
@click.option("--no-activate", is_flag=True, help="Leave the one in use as it is.")
@click.option("--force", is_flag=True, help="Fetch it again where the same version is there.")
@click.option("-y", "--yes", is_flag=True, help="Ask nothing.")
@click.option("--dry-run", is_flag=True, help="Print the address and the folder, and fetch nothing.")
@talk_options
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
    """Fetch an archive of libtorch for programs that want it without Python."""
    if cpu and cuda:
        raise click.UsageError("--cpu and --cuda are mutually exclusive.")
    place, say, hardware = store.here(), voice(), detect()
    build, reason = _choose(cpu, cuda, hardware)
    given = Path(url).resolve().as_uri() if url and Path(url).is_file() else url
    address = given or archive.address(build, hardware)
    kept = place.root / "libtorch" / "precompiled" / build.name
    target = Path(os.path.realpath(folder)) if folder else kept
    variant = str(target) if folder else f"precompiled/{build.name}"
    say(f"libtorch {builds.TORCH}, {build.what} ({reason})\n  from {address}\n  to   {target}")
    if dry_run:
        return
    there = libtorch.Libtorch(variant, target)
    if there.lib.is_dir() and (there.version or "").startswith(builds.TORCH) and not force:
        say("That version is there already. --force fetches it again.")
        return
    if folder and target.exists() and not there.lib.is_dir() and any(target.iterdir()):
        raise SetupError(f"{target} is not empty and no libtorch. Name another folder.")
    confirm("Download it?", yes=yes)
    archive.fetch(address, target, say)
    archive.write_notes(target, build, builds.TORCH, address)
    if not no_activate:
        place.activate(variant, kind="libtorch")
    say(f"libtorch is in {target}{'' if no_activate else ', and in use'}.")


def _choose(cpu: bool, cuda: str | None, hardware: Hardware) -> tuple[builds.Build, str]:
    if cpu or cuda:
        return builds.find(_CUDA[cuda] if cuda else "cpu"), "as asked for"
    choice = builds.choose(hardware)
    # ROCm and MPS have no archives of their own for every version; the CPU one runs everywhere.
    usable = choice.build if choice.build.cuda else builds.find("cpu")
    return usable, choice.reason


def _pick(variant: str | None) -> libtorch.Libtorch:
    place = store.here()
    return libtorch.find(place, variant) if variant else libtorch.active(place)


def _known(place: store.Store) -> str:
    names = ", ".join(one.variant for one in libtorch.variants(place))
    return f"There are: {names}." if names else "There is none yet."

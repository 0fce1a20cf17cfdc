"""`fdl setup`: the build of torch that fits this machine, several side by side, one in use."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from flodl.cli.machine import builds, install, libtorch, store
from flodl.cli.machine.detection import detect
from flodl.cli.machine.hardware import Hardware
from flodl.cli.machine.pip import Sources, own_requirement
from flodl.cli.machine.terminal import confirm, voice
from flodl.cli.options import talk_options
from flodl.core.errors import SetupError
from flodl.core.formats import format_bytes

_OTHER_JOBS = ("use", "remove", "listed", "export")
IN_THIS_SHELL = 'eval "$(fdl setup --export)"'


@dataclass(frozen=True)
class Request:
    """The command line, typed."""

    build_name: str | None
    use: str | None
    listed: bool
    remove: str | None
    export: bool
    here: bool
    force: bool
    version: str
    requirement: str | None
    index_url: str | None
    find_links: str | None
    yes: bool
    dry_run: bool
    as_json: bool


def _builds(_ctx: click.Context, _option: click.Parameter, start: str) -> list[str]:
    """Complete the name of a build that exists."""
    return [build.name for build in builds.BUILDS if build.name.startswith(start)]


def _installed(_ctx: click.Context, _option: click.Parameter, start: str) -> list[str]:
    """Complete the name of a build that is installed."""
    return [name for name in store.here().installed() if name.startswith(start)]


@click.command("setup")
@click.option(
    "--build", "build_name", metavar="NAME", help="cpu, cu126, cu130, rocm, …", shell_complete=_builds
)
@click.option("--use", metavar="NAME", help="Switch to a build that is there.", shell_complete=_installed)
@click.option("--list", "listed", is_flag=True, help="Show the builds that are installed.")
@click.option("--remove", metavar="NAME", help="Delete a build that is there.", shell_complete=_installed)
@click.option("--export", is_flag=True, help='Print the environment of the build in use, for eval "$(…)".')
@click.option("--here", is_flag=True, help="Install into the environment that runs now.")
@click.option("--force", is_flag=True, help="Install again what is installed.")
@click.option("--torch", "version", default=builds.TORCH, show_default=True, help="Another version of torch.")
@click.option("--flodl", "requirement", metavar="REQUIREMENT", help="Another flodl than the one running now.")
@click.option("--index-url", metavar="URL", help="A mirror of PyTorch's package index.")
@click.option("--find-links", metavar="PLACE", help="A folder or page of wheels.")
@click.option("-y", "--yes", is_flag=True, help="Ask nothing.")
@click.option("--dry-run", is_flag=True, help="Print the command lines, and run none.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@talk_options
def command(**settings: Any) -> None:
    """Find the build of torch that fits this machine, and install it.

    Each build has a virtual environment of its own below FLODL_HOME (~/.flodl), so that several stand side
    by side. If an installation fails, what was there before is there after.
    """
    request = Request(**settings)
    asked = [name for name in _OTHER_JOBS if getattr(request, name)]
    if len(asked) > 1 or (asked and (request.build_name or request.here)):
        raise click.UsageError(
            "--build, --use, --list, --remove and --export are different jobs: ask for one."
        )
    place = store.here()
    if request.use:
        _use(place, request.use, as_json=request.as_json)
    elif request.listed:
        _list(place, as_json=request.as_json)
    elif request.remove:
        _remove(place, request.remove, request)
    elif request.export:
        _export(place)
    else:
        _install(place, request)


def _install(place: store.Store, request: Request) -> None:
    say = voice(aside=request.as_json)
    hardware = detect()
    _describe(hardware, say)
    choice = _choose(hardware, request.build_name)
    say(f"Build:    {choice.build.name}, {choice.build.what}: {choice.reason}")
    for note in choice.notes:
        say(f"Note:     {note}")
    result: dict[str, Any] = {
        "hardware": asdict(hardware),
        "build": choice.build.name,
        "reason": choice.reason,
        "notes": list(choice.notes),
        "commands": [],
        "installed": False,
    }
    there = "" if request.force else _already_there(place, choice.build.name, request)
    if there:
        say(there)
    else:
        _carry_out(place, choice, request, result)
    if request.as_json:
        click.echo(json.dumps({**result, "active": place.active(), "root": str(place.root)}))


def _already_there(place: store.Store, name: str, request: Request) -> str:
    """Say where the build is, if it is there already; one that is in the store is put to use."""
    if request.here:
        return ""
    if name in place.installed():
        there = f"torch {place.record(name)['torch']} is in {place.environment(name)}"
        if request.dry_run:
            return f"{there}; it would be put to use."
        place.activate(name)
        return f"{there}, and in use. In this shell: {IN_THIS_SHELL}"
    own = libtorch.of_this_python()
    if not request.build_name and own and own.build == name:
        return (
            f"The torch of this Python, {own.version}, is that build; there is nothing to install. "
            f"For an environment of its own: fdl setup --build {name}"
        )
    return ""


def _carry_out(place: store.Store, choice: builds.Choice, request: Request, result: dict[str, Any]) -> None:
    say, here = voice(aside=request.as_json), request.here
    wish, folder = _wish(choice, request), place.environment(choice.build.name)
    steps = install.plan_here(wish, Path("WHEELS")) if here else install.plan(wish, folder)
    result["commands"] = [list(step.command) for step in steps]
    if request.dry_run:
        for step in steps:
            click.echo(shlex.join(step.command), err=request.as_json)
        return
    where, size = sys.prefix if here else folder, format_bytes(choice.build.disk_bytes)
    confirm(f"Install {wish.build.requirement(wish.version)} in {where} (up to {size})?", yes=request.yes)
    if here:
        install.install_here(wish, place, say)
        say("Done.")
    else:
        install.install(wish, place, say)
        place.activate(choice.build.name)
        say(f"In use: {choice.build.name}. In this shell: {IN_THIS_SHELL}")
    result["installed"] = True


def _wish(choice: builds.Choice, request: Request) -> install.Wish:
    requirement = request.requirement
    return install.Wish(
        choice.build,
        flodl=(requirement,) if requirement else own_requirement(),
        version=request.version,
        sources=Sources(request.index_url, request.find_links),
        reason=choice.reason,
        force=request.force,
    )


def _choose(hardware: Hardware, name: str | None) -> builds.Choice:
    if not name:
        return builds.choose(hardware)
    build = builds.find(name)
    return builds.Choice(build, "as --build says", builds.check_fit(build, hardware))


def _describe(hardware: Hardware, say: Callable[[str], None]) -> None:
    memory = f", {format_bytes(hardware.ram_bytes)} of memory" if hardware.ram_bytes else ""
    say(f"Machine:  {hardware.cpu or hardware.machine}, {hardware.num_threads} threads{memory}")
    for gpu in hardware.gpus:
        size = f", {format_bytes(gpu.memory_bytes)}" if gpu.memory_bytes else ""
        capability = f" ({gpu.capability})" if gpu.capability else ""
        say(f"GPU {gpu.index}:    {gpu.name}{capability}{size}")


def _use(place: store.Store, name: str, *, as_json: bool) -> None:
    name = builds.find(name).name
    place.require(name)
    place.activate(name)
    if as_json:
        click.echo(json.dumps({"active": name, "root": str(place.root)}))
    else:
        voice()(f"In use: {name}. In this shell: {IN_THIS_SHELL}")


def _list(place: store.Store, *, as_json: bool) -> None:
    active = place.active()
    rows = [
        {"build": name, "active": name == active, "path": str(place.environment(name)), **place.record(name)}
        for name in place.installed()
    ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        mark = " (active)" if row["active"] else ""
        click.echo(f"  {row['build']}{mark}  torch {row['torch']}  {row['path']}")
    if not rows:
        click.echo(f"No build is installed in {place.root}. Install the one that fits: fdl setup")


def _remove(place: store.Store, name: str, request: Request) -> None:
    say = voice(aside=request.as_json)
    folder = place.require(name)
    if not request.dry_run:
        confirm(f"Delete {folder}?", yes=request.yes)
        install.remove(name, place)
    say(f"{'Would delete' if request.dry_run else 'Deleted'} {folder}.")
    if request.as_json:
        click.echo(json.dumps({"removed": None if request.dry_run else name, "active": place.active()}))


def _export(place: store.Store) -> None:
    active = place.active()
    if not active:
        raise SetupError("no build is in use. Install the one that fits: fdl setup")
    folder = place.require(active)
    click.echo(f"export VIRTUAL_ENV={shlex.quote(str(folder))}")
    click.echo(f'export PATH={shlex.quote(str(store.python_of(folder).parent))}:"$PATH"')

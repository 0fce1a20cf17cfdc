"""`fdl setup`: install the build of torch that fits this machine, and switch between builds."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from flodl.cli.machine import builds, install, libtorch
from flodl.cli.machine.detection import detect
from flodl.cli.machine.hardware import Hardware
from flodl.cli.machine.pip import Sources, flodl_requirement
from flodl.cli.machine.store import Store, find_store, python_of
from flodl.cli.machine.terminal import confirm, line_printer
from flodl.cli.options import output_options
from flodl.core.errors import SetupError
from flodl.core.formats import format_bytes

_OTHER_ACTIONS = ("use", "remove", "listed", "export")
EVAL_EXPORT = 'eval "$(fdl setup --export)"'


@dataclass(frozen=True)
class Request:
    """The parsed command line."""

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


def _complete_builds(_ctx: click.Context, _option: click.Parameter, start: str) -> list[str]:
    """Complete the name of a build."""
    return [build.name for build in builds.BUILDS if build.name.startswith(start)]


def _complete_installed(_ctx: click.Context, _option: click.Parameter, start: str) -> list[str]:
    """Complete the name of an installed build."""
    return [name for name in find_store().installed() if name.startswith(start)]


@click.command("setup")
@click.option(
    "--build",
    "build_name",
    metavar="NAME",
    help="cpu, cu126, cu130, rocm, …",
    shell_complete=_complete_builds,
)
@click.option(
    "--use", metavar="NAME", help="Switch to an installed build.", shell_complete=_complete_installed
)
@click.option("--list", "listed", is_flag=True, help="List the installed builds.")
@click.option(
    "--remove", metavar="NAME", help="Delete an installed build.", shell_complete=_complete_installed
)
@click.option("--export", is_flag=True, help='Print the environment of the active build, for eval "$(…)".')
@click.option("--here", is_flag=True, help="Install into the current environment.")
@click.option("--force", is_flag=True, help="Reinstall a build that is already installed.")
@click.option("--torch", "version", default=builds.TORCH, show_default=True, help="The version of torch.")
@click.option(
    "--flodl", "requirement", metavar="REQUIREMENT", help="The flodl to install instead of the running one."
)
@click.option("--index-url", metavar="URL", help="A mirror of PyTorch's package index.")
@click.option("--find-links", metavar="LOCATION", help="A folder or page with wheels.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Print the commands without running them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@output_options
def command(**settings: Any) -> None:
    """Install the build of torch that fits this machine.

    Each build gets its own virtual environment in FLODL_HOME (~/.flodl), so several can be installed next to
    each other. If an installation fails, the previous one is restored.
    """
    request = Request(**settings)
    actions = [name for name in _OTHER_ACTIONS if getattr(request, name)]
    if len(actions) > 1 or (actions and (request.build_name or request.here)):
        raise click.UsageError("--build, --use, --list, --remove and --export are mutually exclusive.")
    store = find_store()
    if request.use:
        _use(store, request.use, as_json=request.as_json)
    elif request.listed:
        _list(store, as_json=request.as_json)
    elif request.remove:
        _remove(store, request.remove, request)
    elif request.export:
        _export(store)
    else:
        _install(store, request)


def _install(store: Store, request: Request) -> None:
    echo = line_printer(to_stderr=request.as_json)
    hardware = detect()
    _describe(hardware, echo)
    choice = _choose(hardware, request.build_name)
    echo(f"Build:    {choice.build.name}, {choice.build.title}: {choice.reason}")
    for note in choice.notes:
        echo(f"Note:     {note}")
    result: dict[str, Any] = {
        "hardware": asdict(hardware),
        "build": choice.build.name,
        "reason": choice.reason,
        "notes": list(choice.notes),
        "commands": [],
        "installed": False,
    }
    installed = "" if request.force else _already_installed(store, choice.build.name, request)
    if installed:
        echo(installed)
    else:
        _run_install(store, choice, request, result)
    if request.as_json:
        click.echo(json.dumps({**result, "active": store.active(), "root": str(store.root)}))


def _already_installed(store: Store, name: str, request: Request) -> str:
    """Return a message if the build is installed already, and activate it if it is in the store."""
    if request.here:
        return ""
    if name in store.installed():
        message = f"torch {store.record(name)['torch']} is installed in {store.environment(name)}"
        if request.dry_run:
            return f"{message}; it would be activated."
        store.activate(name)
        return f"{message} and now active. For this shell: {EVAL_EXPORT}"
    own = libtorch.of_this_python()
    if not request.build_name and own and own.build == name:
        return (
            f"The torch of this Python, {own.version}, is that build; nothing to install. "
            f"For a separate environment: fdl setup --build {name}"
        )
    return ""


def _run_install(store: Store, choice: builds.Choice, request: Request, result: dict[str, Any]) -> None:
    echo, here = line_printer(to_stderr=request.as_json), request.here
    spec, folder = _install_spec(choice, request), store.environment(choice.build.name)
    steps = install.plan_here(spec, Path("WHEELS")) if here else install.plan(spec, folder)
    result["commands"] = [list(step.command) for step in steps]
    if request.dry_run:
        for step in steps:
            click.echo(shlex.join(step.command), err=request.as_json)
        return
    where, size = sys.prefix if here else folder, format_bytes(choice.build.disk_bytes)
    confirm(f"Install {spec.build.requirement(spec.version)} in {where} (up to {size})?", yes=request.yes)
    if here:
        install.install_here(spec, store, echo)
        echo("Done.")
    else:
        install.install(spec, store, echo)
        store.activate(choice.build.name)
        echo(f"Active: {choice.build.name}. For this shell: {EVAL_EXPORT}")
    result["installed"] = True


def _install_spec(choice: builds.Choice, request: Request) -> install.InstallSpec:
    requirement = request.requirement
    return install.InstallSpec(
        choice.build,
        flodl=(requirement,) if requirement else flodl_requirement(),
        version=request.version,
        sources=Sources(request.index_url, request.find_links),
        reason=choice.reason,
        force=request.force,
    )


def _choose(hardware: Hardware, name: str | None) -> builds.Choice:
    if not name:
        return builds.choose(hardware)
    build = builds.find_build(name)
    return builds.Choice(build, "requested with --build", builds.check_fit(build, hardware))


def _describe(hardware: Hardware, echo: Callable[[str], None]) -> None:
    memory = f", {format_bytes(hardware.ram_bytes)} of memory" if hardware.ram_bytes else ""
    echo(f"Machine:  {hardware.cpu or hardware.machine}, {hardware.num_threads} threads{memory}")
    for gpu in hardware.gpus:
        size = f", {format_bytes(gpu.memory_bytes)}" if gpu.memory_bytes else ""
        capability = f" ({gpu.capability})" if gpu.capability else ""
        echo(f"GPU {gpu.index}:    {gpu.name}{capability}{size}")


def _use(store: Store, name: str, *, as_json: bool) -> None:
    name = builds.find_build(name).name
    store.require(name)
    store.activate(name)
    if as_json:
        click.echo(json.dumps({"active": name, "root": str(store.root)}))
    else:
        line_printer()(f"Active: {name}. For this shell: {EVAL_EXPORT}")


def _list(store: Store, *, as_json: bool) -> None:
    active = store.active()
    rows = [
        {"build": name, "active": name == active, "path": str(store.environment(name)), **store.record(name)}
        for name in store.installed()
    ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        mark = " (active)" if row["active"] else ""
        click.echo(f"  {row['build']}{mark}  torch {row['torch']}  {row['path']}")
    if not rows:
        click.echo(f"No build is installed in {store.root}. To install one: fdl setup")


def _remove(store: Store, name: str, request: Request) -> None:
    echo = line_printer(to_stderr=request.as_json)
    folder = store.require(name)
    if not request.dry_run:
        confirm(f"Delete {folder}?", yes=request.yes)
        install.remove(name, store)
    echo(f"{'Would delete' if request.dry_run else 'Deleted'} {folder}.")
    if request.as_json:
        click.echo(json.dumps({"removed": None if request.dry_run else name, "active": store.active()}))


def _export(store: Store) -> None:
    active = store.active()
    if not active:
        raise SetupError("no build is active. To install one: fdl setup")
    folder = store.require(active)
    click.echo(f"export VIRTUAL_ENV={shlex.quote(str(folder))}")
    click.echo(f'export PATH={shlex.quote(str(python_of(folder).parent))}:"$PATH"')

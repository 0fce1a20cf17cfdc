"""`fdl install`: make `fdl` available in every folder, and update or remove it."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import flodl
from flodl.cli.machine import builds
from flodl.cli.machine import install as environments
from flodl.cli.machine.detection import detect
from flodl.cli.machine.launcher import Launcher, default_folder
from flodl.cli.machine.pip import Sources, Step, flodl_requirement
from flodl.cli.machine.store import Store, home
from flodl.cli.machine.terminal import confirm, line_printer
from flodl.cli.options import GivenPath, output_options
from flodl.core.errors import SetupError


@dataclass(frozen=True)
class Request:
    """The parsed command line."""

    to: Path | None
    check: bool
    uninstall: bool
    dev: bool
    update: bool
    requirement: str | None
    build_name: str | None
    index_url: str | None
    find_links: str | None
    force: bool
    yes: bool
    dry_run: bool
    as_json: bool


@click.command("install")
@click.option("--to", type=GivenPath(), help="The folder for the launcher; default: ~/.local/bin.")
@click.option("--check", is_flag=True, help="Show what is installed, and change nothing.")
@click.option("--uninstall", is_flag=True, help="Remove the launcher; builds of torch stay.")
@click.option("--dev", is_flag=True, help="Use this checkout as it is, so that changes take effect at once.")
@click.option("--update", is_flag=True, help="Install the newest release instead of the running flodl.")
@click.option("--flodl", "requirement", metavar="REQUIREMENT", help="The flodl to install.")
@click.option("--build", "build_name", metavar="NAME", help="The build of torch; default: the active one.")
@click.option("--index-url", metavar="URL", help="A mirror of the package index.")
@click.option("--find-links", metavar="LOCATION", help="A folder or page with wheels.")
@click.option("--force", is_flag=True, help="Reinstall flodl, and replace another program called fdl.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Print the commands without running them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@output_options
def command(**settings: Any) -> None:
    """Make fdl available in every folder, or update it.

    flodl and the build of torch that fits this machine get a virtual environment in FLODL_HOME (~/.flodl), as
    with `fdl setup`; an existing one is used. The launcher ~/.local/bin/fdl starts the fdl of the active
    build. A second call changes nothing unless this flodl is a different one.
    """
    request = Request(**settings)
    if request.check + request.uninstall + (request.dev or request.update) > 1:
        raise click.UsageError("--check, --uninstall and installing are mutually exclusive.")
    if request.dev + request.update + bool(request.requirement) > 1:
        raise click.UsageError("--dev, --update and --flodl are mutually exclusive.")
    launcher, store = Launcher((request.to or default_folder()).absolute()), Store(home())
    if request.check:
        _check(launcher, store, as_json=request.as_json)
    elif request.uninstall:
        _uninstall(launcher, store, request)
    else:
        _install(launcher, store, request)


def _install(launcher: Launcher, store: Store, request: Request) -> None:
    echo = line_printer(to_stderr=request.as_json)
    if not request.force:
        launcher.check_replaceable()
    spec = _spec(store, request)
    steps = _steps(store, spec, request)
    writes = not launcher.is_current(store.root)
    if request.dry_run:
        for step in steps:
            click.echo(shlex.join(step.command), err=request.as_json)
        if writes:
            echo(f"Would write {launcher.path}.")
    else:
        _run(store, spec, steps, request)
        if writes:
            launcher.write(store.root)
            echo(f"Wrote {launcher.path}.")
    if not steps and not writes:
        version = store.record(spec.build.name)["flodl"]
        echo(f"flodl {version} is installed, and {launcher.path} starts it. --force reinstalls it.")
    if not request.dry_run and (problem := launcher.problem()):
        echo(f"Note: {problem}")
    if request.as_json:
        commands = [list(step.command) for step in steps]
        result = {"commands": commands, "launcher": str(launcher.path), "installed": not request.dry_run}
        click.echo(json.dumps({**result, "build": spec.build.name, "changed": bool(steps) or writes}))


def _spec(store: Store, request: Request) -> environments.InstallSpec:
    active = store.active()
    if request.build_name:
        build, reason = builds.find_build(request.build_name), "requested with --build"
    elif active in store.installed():
        build, reason = builds.find_build(active or ""), "it is active"
    else:
        choice = builds.choose(detect())
        build, reason = choice.build, choice.reason
    return environments.InstallSpec(
        build,
        flodl=_requirement(request),
        sources=Sources(request.index_url, request.find_links),
        reason=reason,
        force=request.force,
    )


def _requirement(request: Request) -> tuple[str, ...]:
    if request.requirement:
        return (request.requirement,)
    if request.update:
        return ("flodl",)
    found = flodl_requirement()
    location = found[-1]
    if not request.dev:
        return (location,)  # a copy of the checkout, which works if the checkout is moved or deleted
    if not Path(location).is_dir():
        raise SetupError(
            f"--dev needs a checkout of flodl, and this flodl was installed as {location}. Clone the "
            "repository and run ./fdl install --dev there, or omit --dev."
        )
    return ("--editable", location)


def _steps(store: Store, spec: environments.InstallSpec, request: Request) -> list[Step]:
    """Return the commands that are still needed."""
    name = spec.build.name
    if name not in store.installed():
        return environments.plan(spec, store.environment(name))
    record = store.record(name)
    is_same = (record.get("flodl"), record.get("requirement")) == (flodl.__version__, list(spec.flodl))
    if is_same and not request.update and not request.force:
        return []
    return environments.plan_update(spec, store.environment(name))


def _run(store: Store, spec: environments.InstallSpec, steps: list[Step], request: Request) -> None:
    echo, name = line_printer(to_stderr=request.as_json), spec.build.name
    if steps and name in store.installed():
        environments.update(spec, store, echo)
    elif steps:
        requirement, folder = spec.build.requirement(spec.version), store.environment(name)
        echo(f"Build: {name}, {spec.build.title}: {spec.reason}")
        confirm(f"Install {requirement} and flodl in {folder}?", yes=request.yes)
        environments.install(spec, store, echo)
    if store.active() != name:
        store.activate(name)


def _check(launcher: Launcher, store: Store, *, as_json: bool) -> None:
    from flodl.cli.updates import state

    active = store.active()
    try:
        latest = state.load(state.state_file()).latest_known.get("flodl")
    except state.UnreadableSettings:
        latest = None
    facts = {
        "running": flodl.__version__,
        "installed": store.record(active or "").get("flodl") if active else None,
        "build": active,
        "launcher": str(launcher.path) if launcher.exists else None,
        "latest_known": latest,
        "problem": launcher.problem()
        if launcher.exists
        else "fdl is not installed. To install it: fdl install",
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        if value or name != "problem":
            click.echo(f"{name.replace('_', ' ') + ':':<14}{value or 'none'}")


def _uninstall(launcher: Launcher, store: Store, request: Request) -> None:
    echo = line_printer(to_stderr=request.as_json)
    was_there = launcher.exists
    if was_there and not request.dry_run:
        launcher.remove()
    if was_there:
        echo(f"{'Would delete' if request.dry_run else 'Deleted'} {launcher.path}.")
    else:
        launcher.check_replaceable()
        echo(f"There is no launcher in {launcher.folder}.")
    if store.installed():
        names = ", ".join(store.installed())
        echo(f"Builds of torch stay in {store.root}: {names}. To delete one: fdl setup --remove NAME")
    if request.as_json:
        removed = str(launcher.path) if was_there and not request.dry_run else None
        click.echo(json.dumps({"removed": removed, "builds": store.installed()}))

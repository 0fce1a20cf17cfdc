"""Install a build into its own environment or into the current one, completely or not at all."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import flodl
from flodl.core.errors import SetupError
from flodl.core.files import write_atomic
from flodl.core.formats import format_bytes

from .builds import TORCH, Build
from .hardware import run_tool
from .pip import PIP_FLAGS, Sources, Step, run
from .store import RECORD, Store, cannot_write, python_of
from .torch_facts import query_torch

Echo = Callable[[str], None]
_FLODL_VERSION = "import flodl; print(flodl.__version__)"


@dataclass(frozen=True)
class InstallSpec:
    """What to install: the build, the torch version, pip's arguments for flodl, and the wheel sources."""

    build: Build
    flodl: tuple[str, ...]
    version: str = TORCH
    sources: Sources = field(default_factory=Sources)
    reason: str = ""
    force: bool = False


def plan(spec: InstallSpec, folder: Path) -> list[Step]:
    """Return the commands that create an environment for a build."""
    python = str(python_of(folder))
    requirement = spec.build.requirement(spec.version)
    where = spec.sources.arguments(spec.build.index_url)
    pip = (python, "-m", "pip", "install", *PIP_FLAGS)
    return [
        Step(f"[1/3] create an environment in {folder}", (sys.executable, "-m", "venv", str(folder))),
        Step(f"[2/3] {requirement}", (*pip, requirement, *where)),
        Step(f"[3/3] {' '.join(spec.flodl)}", (*pip, *spec.flodl, *spec.sources.arguments())),
    ]


def plan_here(spec: InstallSpec, wheels: Path) -> list[Step]:
    """Return the commands for the current environment: download everything before changing anything."""
    requirement = spec.build.requirement(spec.version)
    pip = (sys.executable, "-m", "pip")
    where = spec.sources.arguments(spec.build.index_url)
    download = (*pip, "download", *PIP_FLAGS, "--dest", str(wheels), requirement, *where)
    force = ("--force-reinstall",) if spec.force else ()
    install = (*pip, "install", *PIP_FLAGS, *force, "--no-index", "--find-links", str(wheels), requirement)
    return [
        Step(f"[1/2] download {requirement}", download),
        Step(f"[2/2] install it in {sys.prefix}", install),
    ]


def install(spec: InstallSpec, store: Store, echo: Echo) -> None:
    """Create an environment for a build; if anything fails, restore the previous one."""
    folder = store.environment(spec.build.name)
    with store.locked():
        log = _fresh_log(store, spec.build.name)
        _check_space(folder.parent, spec.build)
        with _replacing(folder):
            for step in plan(spec, folder):
                run(step, log, echo)
            facts = _check_torch(python_of(folder), spec, log)
            record = {
                "build": spec.build.name,
                "torch": facts["version"],
                "archs": facts.get("code_for", []),
                "flodl": flodl.__version__,
                "requirement": list(spec.flodl),
                "python": platform.python_version(),
                "reason": spec.reason,
            }
            write_atomic(folder / RECORD, json.dumps(record, indent=2) + "\n")


def install_here(spec: InstallSpec, store: Store, echo: Echo) -> None:
    """Install a build into the current environment."""
    with store.locked():
        log = _fresh_log(store, "here")
        _check_space(Path(sys.prefix), spec.build)
        with tempfile.TemporaryDirectory(prefix="fdl-wheels-") as wheels:
            for step in plan_here(spec, Path(wheels)):
                run(step, log, echo)
        _check_torch(Path(sys.executable), spec, log)


def plan_update(spec: InstallSpec, folder: Path) -> list[Step]:
    """Return the command that replaces flodl in the environment of a build; its torch stays."""
    force = ("--force-reinstall", "--no-deps") if spec.force else ("--upgrade",)
    pip = (str(python_of(folder)), "-m", "pip", "install", *PIP_FLAGS, *force)
    return [Step(f"[1/1] {' '.join(spec.flodl)}", (*pip, *spec.flodl, *spec.sources.arguments()))]


def update(spec: InstallSpec, store: Store, echo: Echo) -> None:
    """Replace flodl in the environment of a build; pip removes the installed one only for a complete one."""
    folder = store.environment(spec.build.name)
    with store.locked():
        log = _fresh_log(store, spec.build.name)
        for step in plan_update(spec, folder):
            run(step, log, echo)
        version, error = run_tool([str(python_of(folder)), "-I", "-c", _FLODL_VERSION])
        if error:
            raise SetupError(f"flodl was updated in {folder}, but cannot be imported: {error}. Log: {log}")
        record = {
            **store.record(spec.build.name),
            "flodl": version.strip(),
            "requirement": list(spec.flodl),
        }
        write_atomic(folder / RECORD, json.dumps(record, indent=2) + "\n")


def remove(build: str, store: Store) -> None:
    """Delete the environment of a build, and deactivate the build if it is active."""
    folder = store.environment(build)
    with store.locked():
        try:
            (folder / RECORD).unlink(missing_ok=True)  # a half-deleted folder must not count as installed
            shutil.rmtree(folder)
        except OSError as error:
            raise cannot_write(error) from None
        if store.active() == build:
            store.activate(None)


@contextmanager
def _replacing(folder: Path) -> Iterator[None]:
    """Move an existing folder aside while a new one is created, and restore it on failure.

    A virtual environment contains its own path, so it has to be created in place.
    """
    backup = folder.with_name(f".{folder.name}.before")
    try:
        if not folder.exists() and backup.exists():
            backup.rename(folder)  # an earlier run was killed before it finished
        if (folder / RECORD).is_file():
            shutil.rmtree(backup, ignore_errors=True)
            folder.rename(backup)
        elif folder.exists():
            shutil.rmtree(folder)  # left by an earlier run that was killed
    except OSError as error:
        raise cannot_write(error) from None
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if backup.exists():
            backup.rename(folder)
        raise
    shutil.rmtree(backup, ignore_errors=True)


def _check_torch(python: Path, spec: InstallSpec, log: Path) -> dict[str, object]:
    """Import the installed torch once, and raise if that fails."""
    facts = query_torch(python)
    if "error" in facts:
        raise SetupError(
            f"{spec.build.requirement(spec.version)} is installed, but cannot be imported: {facts['error']}. "
            f"Try a different build with --build. Full log: {log}"
        )
    return facts


def _check_space(folder: Path, build: Build) -> None:
    free = shutil.disk_usage(folder).free
    if free < build.disk_bytes:
        raise SetupError(
            f"{folder} has {format_bytes(free)} free; {build.title} needs up to "
            f"{format_bytes(build.disk_bytes)}. "
            "Free some space, or set FLODL_HOME to a folder on a different disk."
        )


def _fresh_log(store: Store, name: str) -> Path:
    log = store.root / "torch" / f"{name}.log"
    try:
        log.write_text("", encoding="utf-8")
    except OSError as error:
        raise cannot_write(error) from None
    return log

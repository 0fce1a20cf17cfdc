"""Installing a build: into an environment of its own, or into the one that runs now. Whole or not at all."""

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
from .pip import QUIETLY, Sources, Step, run
from .store import RECORD, Store, cannot_write, python_of
from .torch_facts import ask_torch

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wish:
    """What to install: the build, the version of torch, the words for flodl, and where wheels come from."""

    build: Build
    flodl: tuple[str, ...]
    version: str = TORCH
    sources: Sources = field(default_factory=Sources)
    reason: str = ""
    force: bool = False


def plan(wish: Wish, folder: Path) -> list[Step]:
    """Give the command lines that make an environment of its own for a build."""
    python = str(python_of(folder))
    requirement = wish.build.requirement(wish.version)
    where = wish.sources.arguments(wish.build.index_url)
    pip = (python, "-m", "pip", "install", *QUIETLY)
    return [
        Step(f"[1/3] an environment in {folder}", (sys.executable, "-m", "venv", str(folder))),
        Step(f"[2/3] {requirement}", (*pip, requirement, *where)),
        Step(f"[3/3] {' '.join(wish.flodl)}", (*pip, *wish.flodl, *wish.sources.arguments())),
    ]


def plan_here(wish: Wish, wheels: Path) -> list[Step]:
    """Give the command lines for the environment that runs now: all is fetched before anything changes."""
    requirement = wish.build.requirement(wish.version)
    pip = (sys.executable, "-m", "pip")
    where = wish.sources.arguments(wish.build.index_url)
    fetch = (*pip, "download", *QUIETLY, "--dest", str(wheels), requirement, *where)
    again = ("--force-reinstall",) if wish.force else ()
    change = (*pip, "install", *QUIETLY, *again, "--no-index", "--find-links", str(wheels), requirement)
    return [
        Step(f"[1/2] fetch {requirement}", fetch),
        Step(f"[2/2] install it in {sys.prefix}", change),
    ]


def install(wish: Wish, store: Store, say: Say) -> None:
    """Make an environment for a build; whatever goes wrong, what was there before is there after."""
    folder = store.environment(wish.build.name)
    with store.locked():
        log = _fresh_log(store, wish.build.name)
        _check_space(folder.parent, wish.build)
        with _replacing(folder):
            for step in plan(wish, folder):
                run(step, log, say)
            facts = _check(python_of(folder), wish, log)
            record = {
                "build": wish.build.name,
                "torch": facts["version"],
                "archs": facts.get("code_for", []),
                "flodl": flodl.__version__,
                "python": platform.python_version(),
                "reason": wish.reason,
            }
            write_atomic(folder / RECORD, json.dumps(record, indent=2) + "\n")


def install_here(wish: Wish, store: Store, say: Say) -> None:
    """Put a build into the environment that runs now."""
    with store.locked():
        log = _fresh_log(store, "here")
        _check_space(Path(sys.prefix), wish.build)
        with tempfile.TemporaryDirectory(prefix="fdl-wheels-") as wheels:
            for step in plan_here(wish, Path(wheels)):
                run(step, log, say)
        _check(Path(sys.executable), wish, log)


def remove(build: str, store: Store) -> None:
    """Delete the environment of a build; the one in use is no longer in use then."""
    folder = store.environment(build)
    with store.locked():
        try:
            (folder / RECORD).unlink(missing_ok=True)  # half a folder must not count as a build
            shutil.rmtree(folder)
        except OSError as error:
            raise cannot_write(error) from None
        if store.active() == build:
            store.activate(None)


@contextmanager
def _replacing(folder: Path) -> Iterator[None]:
    """Give way to a new folder of the same name, and come back if it does not get finished.

    A virtual environment knows its own path, so it has to be made in its place, not moved there.
    """
    aside = folder.with_name(f".{folder.name}.before")
    try:
        if not folder.exists() and aside.exists():
            aside.rename(folder)  # an earlier start was killed between the two
        if (folder / RECORD).is_file():
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
        elif folder.exists():
            shutil.rmtree(folder)  # left behind by one that was killed
    except OSError as error:
        raise cannot_write(error) from None
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if aside.exists():
            aside.rename(folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _check(python: Path, wish: Wish, log: Path) -> dict[str, object]:
    """Start the torch that was installed, once."""
    facts = ask_torch(python)
    if "error" in facts:
        raise SetupError(
            f"{wish.build.requirement(wish.version)} is installed, but does not start: {facts['error']}. "
            f"Try another build with --build. The whole log: {log}"
        )
    return facts


def _check_space(folder: Path, build: Build) -> None:
    free = shutil.disk_usage(folder).free
    if free < build.disk_bytes:
        raise SetupError(
            f"{folder} has {format_bytes(free)} free; {build.what} needs up to "
            f"{format_bytes(build.disk_bytes)}. "
            "Free some space, or name a folder on another disk in FLODL_HOME."
        )


def _fresh_log(store: Store, name: str) -> Path:
    log = store.root / "torch" / f"{name}.log"
    try:
        log.write_text("", encoding="utf-8")
    except OSError as error:
        raise cannot_write(error) from None
    return log

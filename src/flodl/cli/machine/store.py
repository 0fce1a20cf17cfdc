"""Where builds of torch and libtorch are kept, side by side, and which of them is in use.

    <root>/torch/.active             one line: cu130
    <root>/torch/cu130/              a virtual environment with that build and flodl
    <root>/libtorch/.active          one line: precompiled/cu130
    <root>/libtorch/precompiled/…    archives of libtorch, unpacked

An environment counts once its record is there, and that is written last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flodl.core import environment, lock
from flodl.core.errors import SetupError
from flodl.core.files import write_atomic
from flodl.core.paths import suggestion

RECORD = "fdl-build.json"


@dataclass(frozen=True)
class Store:
    """One place where builds are kept: a project's own, or the one of the user."""

    root: Path
    mode: str = "global"

    def __str__(self) -> str:
        return f"{self.mode} ({self.root})"

    def environment(self, build: str) -> Path:
        """Give the folder of the virtual environment for a build, there or not."""
        return self.root / "torch" / build

    def installed(self) -> list[str]:
        """Give the builds that are whole, by name."""
        records = (self.root / "torch").glob(f"*/{RECORD}")
        return sorted(path.parent.name for path in records if self.record(path.parent.name))

    def record(self, build: str) -> dict[str, Any]:
        """Give what was written when a build was installed; nothing if that was never finished."""
        try:
            found = json.loads((self.environment(build) / RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) and isinstance(found.get("torch"), str) else {}

    def active(self, kind: str = "torch") -> str | None:
        """Give the name of what is in use: of `torch` or of `libtorch`."""
        try:
            return (self.root / kind / ".active").read_text(encoding="utf-8").strip() or None
        except OSError:
            return None

    def activate(self, name: str | None, *, kind: str = "torch") -> None:
        """Use that one from now on, or none."""
        try:
            write_atomic(self.root / kind / ".active", f"{name}\n" if name else "")
        except OSError as error:
            raise cannot_write(error) from None

    def require(self, build: str) -> Path:
        """Give the environment of a build that is installed, or say which are."""
        if build in self.installed():
            return self.environment(build)
        hint = suggestion(build, self.installed(), known_as="installed builds")
        raise SetupError(
            f"the build {build!r} is not installed in {self.root}. {hint} "
            f"Install it: fdl setup --build {build}"
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from changing the store meanwhile."""
        try:
            (self.root / "torch").mkdir(parents=True, exist_ok=True)
            handle = os.open(self.root / "torch" / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise cannot_write(error) from None
        try:
            _lock(handle, self.root)
            yield
        finally:
            os.close(handle)


def here(start: Path | None = None) -> Store:
    """Give the store for a folder: that of the project around it, if it has one, else that of the user."""
    try:
        start = (start or Path.cwd()).resolve()
    except OSError:  # the folder was deleted under the shell
        return Store(home())
    for folder in (start, *start.parents):
        # Unlike the method of Path, this one takes a folder that may not be looked into for one without it.
        if any(os.path.isfile(folder / kind / ".active") for kind in ("libtorch", "torch")):
            return Store(folder, "project" if folder != home() else "global")
    return Store(home())


def home() -> Path:
    """Give the user's own store."""
    named = environment.home_text()
    return Path(os.path.realpath(os.path.expanduser(named))) if named else Path.home() / ".flodl"


def python_of(folder: Path) -> Path:
    """Give the Python of a virtual environment."""
    return folder / "Scripts/python.exe" if os.name == "nt" else folder / "bin/python"


def cannot_write(error: OSError) -> SetupError:
    """Word a failure to write to the store."""
    return SetupError(
        f"{error.filename} cannot be written: {error.strerror}. Make it writable, or name another folder in "
        "FLODL_HOME."
    )


def _lock(handle: int, root: Path) -> None:
    try:
        is_ours = lock.acquire(handle, wait=False)
    except OSError:  # a file system without locks
        return
    if not is_ours:
        raise SetupError(
            f"another `fdl setup` is at work in {root}. Wait until it is done, then start again."
        )

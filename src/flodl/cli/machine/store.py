"""The folder with installed builds of torch and libtorch, and which of them is active.

    <root>/torch/.active             one line: cu130
    <root>/torch/cu130/              a virtual environment with that build and flodl
    <root>/libtorch/.active          one line: precompiled/cu130
    <root>/libtorch/precompiled/…    unpacked archives of libtorch

An environment counts as installed once it has a record, which is written last.
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
from flodl.core.files import expand_user, write_atomic
from flodl.core.paths import suggestion

RECORD = "fdl-build.json"


@dataclass(frozen=True)
class Store:
    """A folder with builds: that of a project or that of the user."""

    root: Path
    mode: str = "global"

    def __str__(self) -> str:
        return f"{self.mode} ({self.root})"

    def environment(self, build: str) -> Path:
        """Return the folder of a build's virtual environment, which may not exist."""
        return self.root / "torch" / build

    def installed(self) -> list[str]:
        """Return the names of the completely installed builds."""
        records = (self.root / "torch").glob(f"*/{RECORD}")
        return sorted(path.parent.name for path in records if self.record(path.parent.name))

    def record(self, build: str) -> dict[str, Any]:
        """Return the record of an installed build, or an empty dict if it is not installed."""
        try:
            found = json.loads((self.environment(build) / RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) and isinstance(found.get("torch"), str) else {}

    def active(self, kind: str = "torch") -> str | None:
        """Return the name of the active `torch` build or `libtorch` variant, or None."""
        try:
            return (self.root / kind / ".active").read_text(encoding="utf-8").strip() or None
        except OSError:
            return None

    def activate(self, name: str | None, *, kind: str = "torch") -> None:
        """Set the active build or variant; None deactivates it."""
        try:
            write_atomic(self.root / kind / ".active", f"{name}\n" if name else "")
        except OSError as error:
            raise cannot_write(error) from None

    def require(self, build: str) -> Path:
        """Return the environment of a build; raise if it is not installed."""
        if build in self.installed():
            return self.environment(build)
        hint = suggestion(build, self.installed(), known_as="installed builds")
        raise SetupError(
            f"the build {build!r} is not installed in {self.root}. {hint} "
            f"Install it: fdl setup --build {build}"
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock that keeps other processes from changing the store."""
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


def find_store(start: Path | None = None) -> Store:
    """Return the store of the project around a folder, or the user's store."""
    try:
        start = (start or Path.cwd()).resolve()
    except OSError:  # the working directory was deleted
        return Store(home())
    for folder in (start, *start.parents):
        # os.path.isfile returns False for a folder without read permission; Path.is_file may raise.
        if any(os.path.isfile(folder / kind / ".active") for kind in ("libtorch", "torch")):
            return Store(folder, "project" if folder != home() else "global")
    return Store(home())


def home() -> Path:
    """Return the folder of the user's store."""
    path = environment.home_text()
    return Path(os.path.realpath(expand_user(path))) if path else Path.home() / ".flodl"


def python_of(folder: Path) -> Path:
    """Return the Python of a virtual environment."""
    return folder / "Scripts/python.exe" if os.name == "nt" else folder / "bin/python"


def cannot_write(error: OSError) -> SetupError:
    """Return the error for a failed write to the store."""
    return SetupError(
        f"{error.filename} cannot be written: {error.strerror}. Make it writable, or set FLODL_HOME to "
        "a different folder."
    )


def _lock(handle: int, root: Path) -> None:
    try:
        acquired = lock.acquire(handle, wait=False)
    except OSError:  # the file system has no locks
        return
    if not acquired:
        raise SetupError(
            f"another `fdl setup` is running in {root}. Wait until it has finished, then try again."
        )

"""Commands inside a container: what `docker compose run` is called with."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flodl.core.errors import ManifestError

from .document import plain
from .reading import read_document

COMPOSE_FILE = "docker-compose.yml"
DEFAULT_ROOT = "/workspace"
_MARK = Path("/.dockerenv")


def inside_container() -> bool:
    """Say whether this process is in a container already."""
    return _MARK.exists()


def project_with_compose(folder: Path) -> Path:
    """Give the nearest folder, upwards, that has a compose file."""
    for candidate in (folder, *folder.parents):
        if (candidate / COMPOSE_FILE).is_file():
            return candidate
    raise ManifestError(
        f"`docker:` needs a {COMPOSE_FILE} in {folder} or above it. Write one, or drop `docker:`."
    )


def container_root(project: Path, service: str) -> str:
    """Give where the project is mounted in a service: the volume whose host side is `.`."""
    file = project / COMPOSE_FILE
    if not file.is_file():
        return DEFAULT_ROOT
    services = plain(read_document(file)).get("services")
    entry = services.get(service) if isinstance(services, dict) else None
    volumes = entry.get("volumes") if isinstance(entry, dict) else None
    for volume in volumes if isinstance(volumes, list) else ():
        host, target = _sides(volume)
        if host in (".", "./") and target:
            return target.rstrip("/") or "/"
    return DEFAULT_ROOT


def _sides(volume: Any) -> tuple[str, str]:
    if isinstance(volume, dict):
        return str(volume.get("source", "")), str(volume.get("target", ""))
    host, _, rest = str(volume).partition(":")
    return host, rest.partition(":")[0]


def wrap_script(service: str, line: str) -> list[str]:
    """Give the command for the shell line of a `run:` command."""
    return ["docker", "compose", "run", "--rm", service, "bash", "-c", line]


def wrap_entry(service: str, project: Path, folder: Path, words: Sequence[str]) -> list[str]:
    """Give the command for an entry, started in its own folder inside the container."""
    root = container_root(project, service)
    relative = Path(os.path.relpath(folder, project)).as_posix()
    inner = root if relative == "." else f"{root.rstrip('/')}/{relative}"
    line = f"cd {shlex.quote(inner)} && {shlex.join(words)}"
    root_variable = f"FDL_PROJECT_ROOT={root}"
    return ["docker", "compose", "run", "--rm", "-e", root_variable, service, "bash", "-c", line]

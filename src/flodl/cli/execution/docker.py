"""Commands inside a container: what `docker compose run` is called with."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flodl.cli.manifest.discovery import is_file
from flodl.cli.manifest.document import plain
from flodl.cli.manifest.parser import read_document
from flodl.core.environment import PROJECT_ROOT
from flodl.core.errors import ManifestError

COMPOSE_FILES = ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml")
DEFAULT_ROOT = "/workspace"


def compose_file(folder: Path) -> Path | None:
    """Give the compose file of a folder; of several, the one that docker takes."""
    return next((folder / name for name in COMPOSE_FILES if is_file(folder / name)), None)


def project_with_compose(folder: Path) -> Path:
    """Give the nearest folder, upwards, that has a compose file."""
    for candidate in (folder, *folder.parents):
        if compose_file(candidate):
            return candidate
    raise ManifestError(
        f"`docker:` needs a docker-compose.yml in {folder} or above it. Write one, or drop `docker:`."
    )


def mounted_project(folder: Path, otherwise: Path) -> Path:
    """Give the folder that is mounted in the containers: the one with the compose file."""
    try:
        return project_with_compose(folder)
    except ManifestError:
        return otherwise


def container_root(project: Path, service: str) -> str:
    """Give where the project is mounted in a service: the volume whose host side is `.`."""
    file = compose_file(project)
    if file is None:
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


def wrap_script(
    service: str, project: Path, folder: Path, line: str, *, variables: Mapping[str, str] | None = None
) -> list[str]:
    """Give the command for the shell line of a `run:` command; below the project it goes there first.

    A container has an environment of its own: `variables` are those that it gets from here.
    """
    inner = folder_inside(service, project, folder)
    if folder != project:
        line = f"cd {shlex.quote(inner)} && {line}"
    return _compose_run(service, line, variables or {})


def wrap_entry(
    service: str,
    project: Path,
    folder: Path,
    words: Sequence[str],
    *,
    variables: Mapping[str, str] | None = None,
) -> list[str]:
    """Give the command for an entry, started in its own folder inside the container."""
    line = f"cd {shlex.quote(folder_inside(service, project, folder))} && {shlex.join(words)}"
    return _compose_run(service, line, {PROJECT_ROOT: container_root(project, service), **(variables or {})})


def _compose_run(service: str, line: str, variables: Mapping[str, str]) -> list[str]:
    given = [word for name, value in variables.items() for word in ("-e", f"{name}={value}")]
    return ["docker", "compose", "run", "--rm", *given, service, "bash", "-c", line]


def folder_inside(service: str, project: Path, folder: Path) -> str:
    """Give where a folder of the project is inside the container."""
    root = container_root(project, service)
    relative = Path(os.path.relpath(folder, project)).as_posix()
    return root if relative == "." else f"{root.rstrip('/')}/{relative}"

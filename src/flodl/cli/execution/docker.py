"""Run a command in a container with `docker compose run`."""

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
    """Return the compose file of a folder. If there are several, return the one that docker uses."""
    return next((folder / name for name in COMPOSE_FILES if is_file(folder / name)), None)


def project_with_compose(folder: Path) -> Path:
    """Return the nearest folder with a compose file, in the folder or one of its parents."""
    for candidate in (folder, *folder.parents):
        if compose_file(candidate):
            return candidate
    raise ManifestError(
        f"`docker:` needs a docker-compose.yml in {folder} or its parents. Create one, or remove `docker:`."
    )


def mounted_project(folder: Path, default: Path) -> Path:
    """Return the folder that is mounted in the containers: the one with the compose file."""
    try:
        return project_with_compose(folder)
    except ManifestError:
        return default


def container_root(project: Path, service: str) -> str:
    """Return where the project is mounted in a service: the target of the volume with source `.`."""
    file = compose_file(project)
    if file is None:
        return DEFAULT_ROOT
    services = plain(read_document(file)).get("services")
    entry = services.get(service) if isinstance(services, dict) else None
    volumes = entry.get("volumes") if isinstance(entry, dict) else None
    for volume in volumes if isinstance(volumes, list) else ():
        source, target = _source_and_target(volume)
        if source in (".", "./") and target:
            return target.rstrip("/") or "/"
    return DEFAULT_ROOT


def _source_and_target(volume: Any) -> tuple[str, str]:
    if isinstance(volume, dict):
        return str(volume.get("source", "")), str(volume.get("target", ""))
    source, _, rest = str(volume).partition(":")
    return source, rest.partition(":")[0]


def wrap_script(
    service: str, project: Path, folder: Path, line: str, *, variables: Mapping[str, str] | None = None
) -> list[str]:
    """Return the docker command for the shell line of a `run:` command.

    In a subfolder of the project, the line starts with `cd`. A container does not inherit the environment;
    `variables` are passed to it.
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
    """Return the docker command for an entry, which starts in its own folder inside the container."""
    line = f"cd {shlex.quote(folder_inside(service, project, folder))} && {shlex.join(words)}"
    return _compose_run(service, line, {PROJECT_ROOT: container_root(project, service), **(variables or {})})


def _compose_run(service: str, line: str, variables: Mapping[str, str]) -> list[str]:
    options = [word for name, value in variables.items() for word in ("-e", f"{name}={value}")]
    return ["docker", "compose", "run", "--rm", *options, service, "bash", "-c", line]


def folder_inside(service: str, project: Path, folder: Path) -> str:
    """Return the path of a project folder inside the container."""
    root = container_root(project, service)
    relative = Path(os.path.relpath(folder, project)).as_posix()
    return root if relative == "." else f"{root.rstrip('/')}/{relative}"

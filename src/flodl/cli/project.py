"""The project of the working directory: its manifest and the selected overlay."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flodl.core import environment
from flodl.core.errors import FlodlError, ManifestError

if TYPE_CHECKING:
    from .manifest.loader import Manifest


class Project:
    """The project of a command line; its manifest is loaded on first use."""

    def __init__(self, overlay: str = "", source: str = "") -> None:
        self.overlay = overlay
        self.source = source

    @cached_property
    def file(self) -> Path | None:
        from .manifest.discovery import find_manifest

        return find_manifest()

    @cached_property
    def manifest(self) -> Manifest | None:
        """The manifest with its overlay, or None outside a project."""
        if self.file is None:
            if self.overlay:
                from .manifest.discovery import working_folder

                raise ManifestError(
                    f"{self.source} asks for the environment {self.overlay!r}, "
                    f"but there is no fdl.yml in {working_folder()} or a parent folder."
                )
            return None
        # It imports yaml, which takes longer than the rest of most commands.
        from .manifest.loader import load

        return load(self.file, overlay=self.overlay, source=self.source)

    def require(self) -> Manifest:
        """Return the manifest; raise if there is none."""
        from .manifest.discovery import require_manifest

        require_manifest()
        assert self.manifest is not None
        return self.manifest

    def overlays(self) -> list[str]:
        """Return the names of the overlays."""
        from .manifest.discovery import overlay_names

        return overlay_names(self.file) if self.file else []


def project_of(ctx: click.Context) -> Project:
    """Return the project of the command line."""
    found = ctx.find_object(Project)
    return found if found is not None else Project()


def select_overlay(words: list[str], builtin: Iterable[str]) -> tuple[Project, list[str]]:
    """Return the project with the selected overlay, and the words without the selection.

    Precedence: `--env NAME` anywhere before `--`, then `FDL_ENV`, then a first word that names an overlay.
    """
    overlay, rest = _take_env(words)
    if overlay:
        return Project(overlay, "--env"), rest
    if overlay := environment.overlay_name():
        return Project(overlay, "FDL_ENV"), rest
    project = Project()
    # Words with a dash before it are flags of fdl; none of the remaining ones takes a value.
    first = next((word for word in rest if word == "--" or not word.startswith("-")), "--")
    if first == "--" or first not in available_overlays():
        return project, rest
    if first in builtin or first in _base_commands(project):
        raise ManifestError(
            f"{first!r} is ambiguous: it is a command and an environment (fdl.{first}.yml). "
            f"Rename one of them, or write --env {first}."
        )
    rest.remove(first)
    return Project(first, "the first word"), rest


def available_overlays() -> list[str]:
    """Return the names of the overlays without importing the loader, which most commands do not need."""
    try:
        return Project().overlays()
    except FlodlError:  # a missing folder or an unreadable manifest: commands that need it report that
        return []


def _base_commands(project: Project) -> Iterable[str]:
    return project.manifest.commands.entries if project.manifest else ()


def _take_env(words: list[str]) -> tuple[str, list[str]]:
    rest: list[str] = []
    found: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word == "--":
            rest += [word, *remaining]
        elif word == "--env":
            found.append(_require_name(next(remaining, None)))
        elif word.startswith("--env="):
            found.append(_require_name(word.removeprefix("--env=")))
        else:
            rest.append(word)
    if len(found) > 1:
        raise ManifestError(f"--env was given more than once: {', '.join(found)}. Choose one environment.")
    return (found[0] if found else ""), rest


def _require_name(name: str | None) -> str:
    if name is None or not name or name.startswith("-"):
        actual = "nothing" if not name else repr(name)
        raise ManifestError(f"--env requires a value, got {actual}. Write --env NAME.")
    return name

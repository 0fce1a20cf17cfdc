"""The project around the working directory: which manifest, with which overlay."""

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
    """What a command line says about the project; its manifest is read when it is first asked for."""

    def __init__(self, overlay: str = "", source: str = "") -> None:
        self.overlay = overlay
        self.source = source

    @cached_property
    def file(self) -> Path | None:
        from .manifest.discovery import find_manifest

        return find_manifest()

    @cached_property
    def manifest(self) -> Manifest | None:
        """The manifest with its overlay, or nothing outside of any project."""
        from .manifest.discovery import working_folder
        from .manifest.loader import load

        if self.file is None:
            if self.overlay:
                raise ManifestError(
                    f"{self.source} asks for the environment {self.overlay!r}, "
                    f"and there is no fdl.yml in {working_folder()} or above it."
                )
            return None
        return load(self.file, overlay=self.overlay, source=self.source)

    def require(self) -> Manifest:
        """Give the manifest, or say that there is none."""
        from .manifest.discovery import require_manifest

        require_manifest()
        assert self.manifest is not None
        return self.manifest

    def overlays(self) -> list[str]:
        """Give the names of the overlays that there are."""
        from .manifest.discovery import overlay_names

        return overlay_names(self.file) if self.file else []


def project_of(ctx: click.Context) -> Project:
    """Give the project that the whole command line is about."""
    found = ctx.find_object(Project)
    return found if found is not None else Project()


def select_overlay(words: list[str], builtin: Iterable[str]) -> tuple[Project, list[str]]:
    """Find out which overlay is meant, and give the words without what said so.

    `--env NAME` anywhere before `--` comes first, then `FDL_ENV`, then a first word that is the name of one.
    """
    named, rest = _take_env(words)
    if named:
        return Project(named, "--env"), rest
    if named := environment.overlay_name():
        return Project(named, "FDL_ENV"), rest
    project = Project()
    # What begins with a dash before it is a flag of fdl, and none of those that are left takes a value.
    first = next((word for word in rest if word == "--" or not word.startswith("-")), "--")
    if first == "--" or first not in overlays_nearby():
        return project, rest
    if first in builtin or first in _base_commands(project):
        raise ManifestError(
            f"{first!r} is ambiguous: it is a command and an environment (fdl.{first}.yml). "
            f"Rename one of them, or write --env {first}."
        )
    rest.remove(first)
    return Project(first, "the first word"), rest


def overlays_nearby() -> list[str]:
    """Look for overlays without importing what reads them: most command lines need none."""
    try:
        return Project().overlays()
    except FlodlError:  # of a folder that is gone, a manifest that is none; commands that need one say so
        return []


def _base_commands(project: Project) -> Iterable[str]:
    return project.manifest.commands.entries if project.manifest else ()


def _take_env(words: list[str]) -> tuple[str, list[str]]:
    left: list[str] = []
    found: list[str] = []
    waiting = iter(words)
    for word in waiting:
        if word == "--":
            left += [word, *waiting]
        elif word == "--env":
            found.append(_checked(next(waiting, None)))
        elif word.startswith("--env="):
            found.append(_checked(word.removeprefix("--env=")))
        else:
            left.append(word)
    if len(found) > 1:
        raise ManifestError(f"--env is given more than once: {', '.join(found)}. Name one environment.")
    return (found[0] if found else ""), left


def _checked(name: str | None) -> str:
    if name is None or not name or name.startswith("-"):
        said = "nothing" if not name else repr(name)
        raise ManifestError(f"--env requires a value, and {said} follows. Write --env NAME.")
    return name

"""The playground of an extra: a small program in its own folder, linked in the manifest of the project."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from flodl.cli.manifest.insertion import add_command
from flodl.core.errors import SetupError
from flodl.core.files import write_atomic

from .project import template_files, write_folder

PLAYGROUNDS = {"hf": "flodl-hf"}  # the extra, and the name of the folder and of the command


@dataclass(frozen=True)
class Playground:
    """The folder with the program, and the manifests that get the command, with their new text."""

    folder: Path
    files: tuple[tuple[Path, str], ...]
    manifests: tuple[tuple[Path, str], ...]

    @property
    def is_new(self) -> bool:
        """Whether the folder has to be written."""
        return not os.path.lexists(self.folder)

    def write(self) -> None:
        """Write the folder if it does not exist, then the manifests that change."""
        if self.is_new:
            write_folder(self.folder, self.files)
        try:
            for path, text in self.manifests:
                write_atomic(path, text.encode())
        except OSError as error:
            raise SetupError(f"{error.filename} cannot be written: {error.strerror}.") from None


def plan_playground(extra: str, manifest: Path | None) -> Playground:
    """Return what would be written next to a manifest; nothing is written."""
    if extra not in PLAYGROUNDS:
        known = ", ".join(PLAYGROUNDS)
        raise SetupError(
            f"the extra {extra!r} has no playground; there is one for: {known}. Omit --playground."
        )
    if manifest is None:
        raise SetupError(
            "a playground is a command of a project, and there is no fdl.yml here or in a parent folder. "
            "Create a project first: fdl init NAME"
        )
    name = PLAYGROUNDS[extra]
    manifests = [manifest, *_examples(manifest)]
    texts = [(path, path.read_bytes().decode()) for path in manifests]
    changed = [(path, text, add_command(path, text, name)) for path, text in texts]
    return Playground(
        manifest.parent / name,
        tuple(template_files(f"playground-{extra}")),
        tuple((path, after) for path, before, after in changed if after != before),
    )


def _examples(manifest: Path) -> list[Path]:
    """Return the example manifests that people copy to get the manifest."""
    candidates = (manifest.with_name(f"{manifest.name}.{suffix}") for suffix in ("example", "dist"))
    return [path for path in candidates if path.is_file()]

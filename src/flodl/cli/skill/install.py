"""Write the skill to a folder, without overwriting what the user has changed there."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import flodl
from flodl.core.errors import SetupError
from flodl.core.files import write_atomic

from .content import NAME, read_files

RECORD = ".fdl-skill.json"  # the hashes of what was written, to tell an older version from a changed file
State = Literal["not installed", "current", "outdated", "modified"]


@dataclass(frozen=True)
class Folder:
    """The folder of the skill in a project: `.claude/skills/flodl-porting`."""

    path: Path

    @classmethod
    def below(cls, skills: Path) -> Folder:
        """Return the folder of the skill in a folder of skills."""
        return cls(skills / NAME)

    def state(self) -> State:
        """Return whether the skill is here, and whether it is the one that this flodl contains."""
        if not any((self.path / name).exists() for name in read_files()):
            return "not installed"
        if self.modified():
            return "modified"
        return "outdated" if self.outdated() else "current"

    def modified(self) -> list[str]:
        """Return the files whose content this or another flodl did not write."""
        recorded, found = self._recorded(), []
        for name, content in read_files().items():
            present = self._read(name)
            if present not in (None, content) and _hash(present or b"") != recorded.get(name):
                found.append(name)
        return found

    def outdated(self) -> list[str]:
        """Return the files that are missing or have different content."""
        return [name for name, content in read_files().items() if self._read(name) != content]

    def leftovers(self) -> list[str]:
        """Return unchanged files that an earlier flodl wrote and this one does not have."""
        known = read_files()
        names = [name for name in self._recorded() if name not in known]
        return [name for name in names if _hash(self._read(name) or b"") == self._recorded()[name]]

    def check_unmodified(self) -> None:
        """Raise if writing would overwrite changes of the user."""
        if changed := self.modified():
            raise SetupError(
                f"{self.path} has files that were changed since they were written: {', '.join(changed)}. "
                "Nothing was written. Pass --force to overwrite them, or --to with a different folder."
            )

    def write(self) -> list[str]:
        """Write the files that differ and return their names."""
        outdated, leftovers, files = self.outdated(), self.leftovers(), read_files()
        try:
            for name in outdated:
                write_atomic(self.path / name, files[name])
            for name in leftovers:
                (self.path / name).unlink(missing_ok=True)
            if outdated or leftovers or not self._recorded():
                # Last: until then, a file of the earlier version still counts as unchanged.
                write_atomic(self.path / RECORD, _record(files))
        except OSError as error:
            raise SetupError(f"{error.filename} cannot be written: {error.strerror}.") from None
        return outdated

    def _recorded(self) -> dict[str, str]:
        try:
            files = json.loads(self._read(RECORD) or b"{}").get("files", {})
        except (ValueError, AttributeError):
            return {}
        # A path that leaves the folder was not written by flodl.
        return {
            name: one
            for name, one in files.items()
            if isinstance(one, str) and not Path(name).is_absolute() and ".." not in Path(name).parts
        }

    def _read(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise SetupError(f"{self.path / name} cannot be read: {error.strerror}.") from None


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _record(files: dict[str, bytes]) -> str:
    hashes = {name: _hash(content) for name, content in files.items()}
    return json.dumps({"flodl": flodl.__version__, "files": hashes}, indent=2) + "\n"

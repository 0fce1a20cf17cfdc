"""Add an extra of flodl, such as `hf`, to the requirements of a project."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flodl
from flodl.core.errors import SetupError
from flodl.core.files import write_atomic
from flodl.core.paths import suggestion


@dataclass(frozen=True)
class Extra:
    """An extra: what it is for, and the first thing to try."""

    purpose: str
    next_step: str


EXTRAS = {
    "hf": Extra(
        "models of the Hugging Face hub",
        "from flodl.hf import AutoModelForSequenceClassification",
    ),
    "ray": Extra(
        "training on the hosts of a Ray cluster, and Ray Tune's searchers in `fdl sweep`",
        "fdl launch --on ray --ranks 2 train.py",
    ),
    "sweep": Extra("searches by Optuna in `fdl sweep`", "fdl sweep --search tpe --over lr=1e-4..1e-1:log"),
    "trackers": Extra(
        "experiment trackers (MLflow, Weights & Biases, Trackio)", "from flodl.monitor import sinks"
    ),
    "zstd": Extra("compressed checkpoints", 'flodl.save_checkpoint("model.fdl.zst", model.state_dict())'),
}

_LINE = re.compile(r"^(\s*flodl)(?:\s*\[([^\]]*)\])?(?=\s*(?:[<>=!~;@#]|$))", re.IGNORECASE | re.MULTILINE)
_STRING = re.compile(r"""(["']\s*flodl)(?:\s*\[([^\]]*)\])?(?=\s*[<>=!~;@"'])""", re.IGNORECASE)


@dataclass(frozen=True)
class Addition:
    """The file that lists the requirements, and its text with the extra."""

    path: Path
    text: str
    is_changed: bool

    def write(self) -> None:
        """Write the file, atomically."""
        try:
            if self.is_changed:
                write_atomic(self.path, self.text)
        except OSError as error:
            raise SetupError(f"{self.path} cannot be written: {error.strerror}.") from None


def find_extra(name: str) -> Extra:
    """Return an extra by name.

    >>> find_extra("hg")
    Traceback (most recent call last):
    flodl.core.errors.SetupError: flodl has no extra 'hg'. The extras here are 'hf', 'ray', ...
    """
    if name in EXTRAS:
        return EXTRAS[name]
    hint = suggestion(name, EXTRAS, known_as="extras")
    raise SetupError(f"flodl has no extra {name!r}. {hint}")


def add_extra(folder: Path, name: str) -> Addition:
    """Return the change that adds an extra to pyproject.toml or requirements.txt; nothing is written.

    The file that lists flodl is changed. If none does, a line is added to requirements.txt.
    """
    find_extra(name)
    project, requirements = folder / "pyproject.toml", folder / "requirements.txt"
    text = _read(project)
    if text is not None and _requires_flodl(_dependencies(project, text)):
        changed = _STRING.sub(lambda found: f"{found[1]}{_merged(found[2], name)}", text)
        if not all(name in _extras_of(line) for line in _flodl_lines(_dependencies(project, changed))):
            raise SetupError(
                f"{project} lists flodl in a form that cannot be changed automatically. Write "
                f"flodl[{name}] there."
            )
        return Addition(project, changed, changed != text)
    listed = _read(requirements)
    if listed is None and text is not None and "dependencies" in _table(project, text):
        raise SetupError(
            f"{project} does not list flodl. Add this line to its dependencies: "
            f'"flodl[{name}]>={flodl.__version__}"'
        )
    changed = _LINE.sub(lambda found: f"{found[1]}{_merged(found[2], name)}", listed or "")
    if not _LINE.search(changed):
        separator = "" if not changed or changed.endswith("\n") else "\n"
        changed += f"{separator}flodl[{name}]>={flodl.__version__}\n"
    return Addition(requirements, changed, changed != listed)


def _merged(present: str | None, name: str) -> str:
    """Return the brackets with the extras that are present and a new one."""
    extras = {one.strip() for one in (present or "").split(",") if one.strip()}
    return f"[{','.join(sorted(extras | {name}))}]"


def _extras_of(requirement: str) -> set[str]:
    found = re.match(r"\s*flodl\s*\[([^\]]*)\]", requirement, re.IGNORECASE)
    return {one.strip() for one in found[1].split(",")} if found else set()


def _requires_flodl(dependencies: list[str]) -> bool:
    return bool(_flodl_lines(dependencies))


def _flodl_lines(dependencies: list[str]) -> list[str]:
    return [line for line in dependencies if re.match(r"\s*flodl\s*(?:$|[\[<>=!~;@ ])", line, re.IGNORECASE)]


def _dependencies(path: Path, text: str) -> list[str]:
    found = _table(path, text).get("dependencies", [])
    return [line for line in found if isinstance(line, str)] if isinstance(found, list) else []


def _table(path: Path, text: str) -> dict[str, Any]:
    try:
        table = tomllib.loads(text).get("project", {})
    except tomllib.TOMLDecodeError as error:
        raise SetupError(f"{path} is not valid TOML: {error}. Fix it first.") from None
    return table if isinstance(table, dict) else {}


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode()  # read_text would change line ends
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SetupError(f"{path} cannot be read: {reason}.") from None

"""From templates to a project: every file is written beside the target, then the folder gets its name."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import flodl
from flodl.core.errors import SetupError

TEMPLATES = Path(__file__).parent / "templates"
_SUFFIX = ".tmpl"  # keeps tools from taking a template for a Python file
_EXECUTABLE = ("fdl",)


def check_name(name: str) -> str:
    """Give the name back if a folder and a package may have it.

    >>> check_name("my project")
    Traceback (most recent call last):
    flodl.core.errors.SetupError: the project name 'my project' is not usable. Begin with a letter, go on \
with letters, digits, '_' and '-': 'my-project'.
    """
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        return name
    usable = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_0123456789") or "my-project"
    raise SetupError(
        f"the project name {name!r} is not usable. Begin with a letter, go on with letters, digits, '_' and "
        f"'-': {usable!r}."
    )


def write_project(target: Path, *, docker: bool) -> list[str]:
    """Write a new project and give the names of its files; what exists is never touched."""
    name = check_name(target.name)
    if os.path.lexists(target):
        raise SetupError(f"{target} is there already, and is left as it is. Choose another name.")
    try:
        work = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=target.parent))
    except OSError as error:
        raise SetupError(f"{target.parent} cannot be written to: {error.strerror}.") from None
    try:
        for path, text in project_files(name, docker=docker):
            _write(work / path, text)
        # The Python that can run it at once; a machine of its own, so not for version control.
        _write(work / ".fdl/python", f"{sys.executable}\n")
        work.chmod(0o755)
        work.rename(target)
    except OSError as error:
        if os.path.lexists(target):
            raise SetupError(
                f"another `fdl init` has just made {target}, which is left as it is. Choose another name."
            ) from None
        raise SetupError(
            f"{target} cannot be made: {error.strerror or error}. Nothing is left of it."
        ) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return sorted(str(path) for path, _text in project_files(name, docker=docker))


def project_files(name: str, *, docker: bool) -> Iterator[tuple[Path, str]]:
    """Give every file of a project: its path in it, and its text."""
    words = {"name": name, "flodl": _own_version(), "package": re.sub(r"[-_.]+", "-", name).lower()}
    for group in ("every", "docker" if docker else "native"):
        folder = TEMPLATES / group
        for template in sorted(folder.rglob(f"*{_SUFFIX}")):
            text = template.read_text(encoding="utf-8")
            for word, value in words.items():
                text = text.replace("{{" + word + "}}", value)
            path = str(template.relative_to(folder)).removesuffix(_SUFFIX).replace("dot-", ".")
            yield Path(path), text


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    if path.name in _EXECUTABLE:
        path.chmod(0o755)


def _own_version() -> str:
    try:
        return version("flodl")
    except PackageNotFoundError:
        return flodl.__version__

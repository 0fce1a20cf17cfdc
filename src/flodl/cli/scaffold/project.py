"""Create a project from templates: write it to a temporary folder, then rename the folder."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import flodl
from flodl.core.errors import SetupError

TEMPLATES = Path(__file__).parent / "templates"
DEFAULT = "digits"
_SUFFIX = ".tmpl"  # so that no tool mistakes a template for a Python file
_EXECUTABLES = ("fdl",)


def check_name(name: str) -> str:
    """Return the name if it is valid for a folder and a package.

    >>> check_name("my project")
    Traceback (most recent call last):
    flodl.core.errors.SetupError: the project name 'my project' is not valid. Start with a letter and use \
only letters, digits, '_' and '-', for example 'my-project'.
    """
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        return name
    suggestion = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_0123456789") or "my-project"
    raise SetupError(
        f"the project name {name!r} is not valid. Start with a letter and use only letters, digits, "
        f"'_' and '-', for example {suggestion!r}."
    )


def write_project(target: Path, *, docker: bool, template: str = DEFAULT) -> list[str]:
    """Write a new project and return the names of its files. Existing files are never touched."""
    name = check_name(target.name)
    if os.path.lexists(target):
        raise SetupError(f"{target} already exists and is left unchanged. Choose another name.")
    files = list(project_files(name, docker=docker, template=template))
    # The Python that can run it now. It differs between machines, so it is not under version control.
    write_folder(target, [*files, (Path(".fdl/python"), f"{sys.executable}\n")])
    return sorted(str(path) for path, _text in files)


def write_folder(target: Path, files: Iterable[tuple[Path, str]]) -> None:
    """Write a new folder completely or not at all: under a temporary name, which is then replaced."""
    try:
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise SetupError(f"{target.parent} cannot be written to: {error.strerror}.") from None
    try:
        for path, text in files:
            _write(work / path, text)
        work.chmod(0o755)
        work.rename(target)
    except OSError as error:
        if os.path.lexists(target):
            raise SetupError(
                f"another `fdl init` has just created {target}, which is left unchanged. Choose another name."
            ) from None
        raise SetupError(
            f"{target} cannot be created: {error.strerror or error}. Nothing was left behind."
        ) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def project_files(name: str, *, docker: bool, template: str = DEFAULT) -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of every file of a project."""
    replacements = {"name": name, "flodl": _flodl_version(), "package": re.sub(r"[-_.]+", "-", name).lower()}
    where = "docker" if docker else "native"
    for group in ("every", template, where, f"{template}-{where}"):
        for path, text in template_files(group):
            for placeholder, value in replacements.items():
                text = text.replace("{{" + placeholder + "}}", value)
            yield path, text


def template_files(group: str) -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of every template in a folder."""
    folder = TEMPLATES / group
    for source in sorted(folder.rglob(f"*{_SUFFIX}")):
        path = str(source.relative_to(folder)).removesuffix(_SUFFIX).replace("dot-", ".")
        yield Path(path), source.read_text(encoding="utf-8")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    if path.name in _EXECUTABLES:
        path.chmod(0o755)


def _flodl_version() -> str:
    try:
        return version("flodl")
    except PackageNotFoundError:
        return flodl.__version__

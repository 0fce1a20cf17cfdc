"""Options of `fdl launch` placed after the script, which would receive them and actually run."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from flodl.core.errors import SetupError

# Those that start nothing; fdl launch has no --dry-run, but --explain is the same.
_ONLY_SHOW = {"--explain": "--explain", "--json": "--json", "--dry-run": "--explain"}
_MAX_FILES = 200
# Packages that add no options to a script.
_WITHOUT_OPTIONS = {"flodl", "numpy", "torch"}


def check_options_after(script: Path, arguments: Iterable[str]) -> None:
    """Raise if an option after the script would only show what is started, and is not one of the script's."""
    for word in arguments:
        if word in ("--", "-"):
            return
        if word in _ONLY_SHOW and not _may_have(script, word):
            raise SetupError(
                f"{word} is after {script}, so it is passed to the script, which does not have it. Options "
                f"of fdl launch come before the script: fdl launch {_ONLY_SHOW[word]} --ranks 2 {script}."
            )


def _may_have(script: Path, option: str) -> bool:
    """Return whether code next to the script has the word, or options may come from another package."""
    word = re.compile(option.removeprefix("--").replace("-", "[-_]"))
    folder = script.resolve().parent
    local = {folder.name}
    for count, path in enumerate(_sources(folder, script.resolve())):
        local |= {path.stem, path.parent.name}
        text = _text_of(path)
        if text is None or count == _MAX_FILES or word.search(text):
            return True
    return bool(_imported(script) - local - _WITHOUT_OPTIONS - sys.stdlib_module_names)


def _sources(folder: Path, script: Path) -> Iterator[Path]:
    """Return the script, the modules next to it, and those of the packages there."""
    yield script
    yield from (path for path in folder.glob("*.py") if path != script)
    for package in folder.glob("*/__init__.py"):
        yield from package.parent.rglob("*.py")


def _imported(script: Path) -> set[str]:
    """Return the packages that a script imports; with one that no package has if it cannot be parsed."""
    try:
        tree = ast.parse(_text_of(script) or "")
    except (SyntaxError, ValueError, RecursionError):
        return {"?"}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None

"""What to install when the `python -m MODULE` of a command fails because the module is missing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from flodl.core.formats import shell_word

from .process import child_environment

REQUIREMENTS = "requirements.txt"
_MODULE = re.compile(r"(python[0-9.]*) -m ([A-Za-z_]\w*)")
# Prints its path, and fails if it has the module.
_SCRIPT = (
    "import sys, importlib.util as util; print(sys.executable); sys.exit(bool(util.find_spec(sys.argv[1])))"
)


def missing_module(line: str, folder: Path) -> str:
    """Return which module the Python of a shell line lacks and how to install it, or an empty string.

    The module has to be one that the requirements of the project name.

    >>> missing_module("echo done", Path("."))
    ''
    """
    found = _MODULE.match(line)
    if found is None or not _requires(folder / REQUIREMENTS, found[2]):
        return ""
    try:
        done = subprocess.run(
            [found[1], "-c", _SCRIPT, found[2]], cwd=folder, env=child_environment(), capture_output=True,
            text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return ""
    python = done.stdout.strip()
    if done.returncode or not python:
        return ""
    return (
        f"{found[2]} is not installed for {python}. Install what this project needs: "
        f"{shell_word(python)} -m pip install -r {shell_word(folder / REQUIREMENTS)}"
    )


def _requires(file: Path, module: str) -> bool:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    return re.search(rf"(?mi)^{module}\b", text) is not None

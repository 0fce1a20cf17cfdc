"""The version of the user's code: its script, a hash of the imported files, and the commit."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from flodl.core.plain import hide_secret, short_hash

_MAX_FILES = 1000
_MAX_FILE_BYTES = 1 << 20
_GIT_TIMEOUT_S = 2.0


def code_version(step_fn: Callable[..., Any] | None) -> dict[str, Any]:
    """Return the script, the arguments it was started with, a hash of the code it imported, and its commit.

    Where the main program is not a script of the user, as in a notebook, it is the file of the step function.
    """
    script = _main_script()
    found: dict[str, Any] = {}
    if script is not None:
        found = {"script": script.name, "arguments": _without_secrets(sys.argv[1:])}
    else:
        script = None if step_fn is None else _file_of(step_fn)
    if script is None:
        return found
    folder = _repository(script.parent)
    return {**found, "hash": _hash_of_sources(folder or script.parent), **_commit(folder)}


def _main_script() -> Path | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    path = None if file is None else Path(file).absolute()
    return path if path is not None and _is_of_user(str(path)) else None


def _file_of(function: Callable[..., Any]) -> Path | None:
    with suppress(TypeError, OSError):
        file = inspect.getsourcefile(inspect.unwrap(function))
        path = None if file is None else Path(file).absolute()
        if path is not None and path.is_file() and _is_of_user(str(path)):
            return path
    return None


def _is_of_user(path: str) -> bool:
    return path.endswith(".py") and not path.startswith(_libraries())


@cache
def _libraries() -> tuple[str, ...]:
    """Return the folders of Python itself and of installed packages."""
    return tuple(
        f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib", "scripts")
    )


def _without_secrets(arguments: list[str]) -> list[str]:
    """Return arguments, with a hash in place of each secret.

    >>> _without_secrets(["--lr", "0.1", "--api-key=abc", "--token", "abc"])
    ['--lr', '0.1', '--api-key=hidden (ba7816bf8f01)', '--token', 'hidden (ba7816bf8f01)']
    """
    shown: list[str] = []
    option = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if argument.startswith("-"):
            option = name.lstrip("-")
            shown.append(f"{name}{equals}{hide_secret(option, value)}")
        else:
            shown.append(str(hide_secret(option, argument)))
            option = ""
    return shown


def _repository(folder: Path) -> Path | None:
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)


def _hash_of_sources(folder: Path) -> str:
    """Return a hash of the imported files in a folder; it changes with any change to the user's code."""
    start = f"{folder}{os.sep}"
    modules = [(name, module) for name, module in list(sys.modules.items()) if name.split(".")[0] != "flodl"]
    files = {str(getattr(module, "__file__", None)) for _, module in modules}
    own = sorted(file for file in files if file.startswith(start) and _is_of_user(file))[:_MAX_FILES]
    content = []
    for file in own:
        with suppress(OSError):
            facts = os.stat(file)
            if facts.st_size <= _MAX_FILE_BYTES:
                content.append(f"{file[len(start) :]} {_hash_of(file, facts.st_mtime_ns, facts.st_size)}")
    return short_hash("\n".join(content).encode())


@lru_cache(maxsize=2 * _MAX_FILES)
def _hash_of(file: str, _time_ns: int, _num_bytes: int) -> str:
    return short_hash(Path(file).read_bytes())


@cache
def _commit(repository: Path | None) -> dict[str, Any]:
    """Return the commit of a repository, and whether tracked files were changed; empty without git."""
    if repository is None:
        return {}
    commit = _git(repository, "rev-parse", "HEAD")
    changes = _git(repository, "status", "--porcelain", "--untracked-files=no")
    found: dict[str, Any] = {} if not commit else {"commit": commit.strip()}
    return found if changes is None else {**found, "is_modified": bool(changes.strip())}


def _git(repository: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(repository), *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout if done.returncode == 0 else None

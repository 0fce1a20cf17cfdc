"""Whether code belongs to the user, or to Python, flodl or another installed package."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_OWN = f"{os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))}{os.sep}"


def is_user_file(path: str) -> bool:
    """Return whether a file belongs to the user; the cells of a notebook do, too.

    >>> is_user_file("/home/me/train.py"), is_user_file(os.__file__), is_user_file("<frozen os>")
    (True, False, False)
    """
    if path.startswith("<"):
        return not path.startswith(("<frozen", "<eval_with_key"))  # of Python, of torch.fx
    return not path.startswith(_libraries()) and not any(part in path for part in _INSTALLED)


def is_own_file(path: str) -> bool:
    """Return whether a file belongs to flodl.

    >>> is_own_file(__file__), is_own_file(os.__file__)
    (True, False)
    """
    return path.startswith(_OWN)


def is_user_module(module: ModuleType) -> bool:
    """Return whether a module is a file of the user, or the main program."""
    if vars(module).get("__name__") == "__main__":
        return True
    file = vars(module).get("__file__")
    return isinstance(file, str) and is_user_source(file)


@lru_cache(maxsize=4096)
def is_user_source(file: str) -> bool:
    """Return whether a file is Python code of the user."""
    return file.endswith(".py") and is_user_file(os.path.abspath(file))


def is_user_class(kind: type) -> bool:
    """Return whether a class was defined by the user."""
    name: Any = kind.__dict__.get("__module__")
    if name == "__main__":
        return True
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module is not None and is_user_module(module)


@cache
def _libraries() -> tuple[str, ...]:
    """Return the folders of Python itself, of installed packages, and of flodl."""
    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    return (_OWN, *(f"{sysconfig.get_path(name)}{os.sep}" for name in names))

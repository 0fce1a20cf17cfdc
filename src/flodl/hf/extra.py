"""Importing the libraries of the extra `flodl[hf]`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from flodl.core import HFError


def require(module: str, purpose: str, package: str = "flodl[hf]") -> Any:
    """Import an optional library, or raise an error with the command that installs it.

    >>> require("no_such_library", "tokenization")
    Traceback (most recent call last):
    flodl.core.errors.HFError: tokenization needs the library no_such_library, which is not installed. \
Install it with: pip install 'flodl[hf]'
    """
    try:
        return import_module(module)
    except ImportError as error:
        if error.name and error.name.split(".")[0] != module.split(".")[0]:
            raise HFError(
                f"{purpose} needs the library {module}, which cannot be imported: {error}. "
                f"Install it again with: pip install --force-reinstall '{package}'"
            ) from error
        raise HFError(
            f"{purpose} needs the library {module}, which is not installed. "
            f"Install it with: pip install '{package}'"
        ) from None

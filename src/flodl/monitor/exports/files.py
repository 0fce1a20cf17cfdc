"""Write an exported file, or explain why that is impossible."""

from __future__ import annotations

import os
from pathlib import Path

from flodl.core.errors import MonitorError
from flodl.core.files import write_atomic


def write_export(path: str | os.PathLike[str], text: str) -> Path:
    """Write a file atomically; a text that is not valid Unicode is escaped."""
    try:
        return write_atomic(path, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        parent = next((parent for parent in Path(path).parents if parent.exists()), None)
        reason = error.strerror or error
        if parent is not None and not parent.is_dir():
            reason = f"{str(parent)!r} is a file, not a folder"
        raise MonitorError(
            f"cannot write {os.fspath(path)!r}: {reason}. Choose a file that can be written."
        ) from error

"""Write an exported file, or explain why that is impossible."""

from __future__ import annotations

import os
from pathlib import Path

from flodl.core.errors import MonitorError
from flodl.core.output_files import write_output


def write_export(path: str | os.PathLike[str], text: str) -> Path:
    """Write a file atomically."""
    return write_output(path, text, example="run.csv", error=MonitorError)

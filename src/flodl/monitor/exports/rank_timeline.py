"""The timeline of several ranks as a picture or a page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flodl.core.errors import MonitorError

from ..journal import Reader
from ..ranks import timeline_html, timeline_svg
from ..snapshot import Run, rank_work
from .files import write_export


def save_rank_timeline(path: str | os.PathLike[str], run: Run | Mapping[str, Any]) -> Path:
    """Write the timeline of a run, or of the data of a `RankHistory`, to an .svg or .html file."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".svg", ".html"):
        raise MonitorError(f"the timeline is written as .svg or .html, got {os.fspath(path)!r}.")
    found = run if isinstance(run, Mapping) else rank_work(Reader.of(run))
    if not found:
        raise MonitorError(
            f"{_name(run)!r} was not trained on several ranks, so it has no timeline of them. Train it with "
            "Trainer(devices=[…])."
        )
    return write_export(path, timeline_svg(found) if suffix == ".svg" else timeline_html(found))


def _name(run: Any) -> str:
    return str(run.path.parent if isinstance(run, Reader) else run)

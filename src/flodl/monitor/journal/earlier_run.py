"""Keep the journal of an earlier run under another name when a new run starts in its folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from flodl.core.errors import MonitorError

from ..events import Event
from . import index
from .codec import FILE, Entry
from .reader import Reader
from .store import Store
from .writer_lock import acquire_writer_lock


def set_aside_earlier_run(run_dir: Path) -> Path | None:
    """Rename the journal of a folder if its run has trained, and return its new path.

    The new journal continues the numbering, so that a page following the folder keeps updating.

    >>> import tempfile
    >>> from flodl.monitor.journal import Journal
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Journal.open(folder) as journal:
    ...         journal.write(Event("epoch", {"epoch": 5, "metrics": {"loss": 0.5}}))
    ...     kept = set_aside_earlier_run(Path(folder))
    ...     [(entry.id, entry.event.kind) for entry in Reader(folder).entries({"epoch", "alert"})]
    [(2, 'alert')]
    >>> kept.name
    'journal-1.jsonl'
    """
    journal = run_dir / FILE
    last_id = _last_id_if_trained(journal)
    if last_id is None:
        return None
    kept = _free_name(run_dir)
    try:
        with open(journal, "r+b") as file:
            if not acquire_writer_lock(file.fileno()):
                return None  # the monitor reports the other run
            if os.name == "nt":
                file.close()  # an open file cannot be renamed there
            journal.rename(kept)
        shutil.rmtree(run_dir / index.FOLDER, ignore_errors=True)
        store = Store(run_dir)
    except OSError:
        return None  # the monitor reports a folder that cannot be written
    message = f"a new run starts: the journal of an earlier run in this folder is now {kept.name}"
    store.put(Entry(last_id + 1, Event("alert", {"message": message, "level": "info"})))
    store.commit()
    store.close()
    return kept


def _last_id_if_trained(journal: Path) -> int | None:
    """Return the number of the last entry, or None if no run in this journal has trained."""
    if not journal.is_file():
        return None
    try:
        reader = Reader(journal)
    except (MonitorError, OSError):
        return None
    has_trained = reader.entries({"epoch", "save"}, last=1) or any(
        len(table.rows) for kind in ("metrics", "progress") for table in reader.tables(kind)
    )
    return reader.last_id if has_trained else None


def _free_name(run_dir: Path) -> Path:
    number = 1
    while (kept := run_dir / f"journal-{number}.jsonl").exists():
        number += 1
    return kept

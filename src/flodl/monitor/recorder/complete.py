"""Complete the journal of a run that is found done when it is started again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flodl.core.errors import MonitorError

from ..events import Event
from ..journal import FILE, Journal, Reader
from ..snapshot import epoch_record, merge_history, starts_of, status
from .epochs import missing_epochs


def complete_journal(run_dir: Path, history: Iterable[Mapping[str, Any]]) -> None:
    """Record the epochs that the journal of a finished run lacks, and its end, if its process did not.

    The process was killed or stopped after the last save. Without a new `run_start`, the settings of the run
    stay those it was trained with.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Journal.open(folder) as journal:
    ...         journal.write(Event("run_start", {"name": "a"}, time_s=1.0))
    ...     complete_journal(Path(folder), [{"epoch": 1, "loss": 0.5}])
    ...     [entry.event.data for entry in Reader(folder).entries({"epoch", "run_end"})]
    [{'epoch': 0, 'metrics': {'loss': 0.5}, 'restored': True}, {'status': 'finished', 'duration_s': 0.0}]
    """
    if not (run_dir / FILE).is_file():
        return
    try:
        reader = Reader(run_dir)
        starts = starts_of(reader, 0)
        events = missing_epochs(_epochs_of(reader), history)
        if starts and status(reader, live=False, starts=starts)["state"] != "finished":
            events.append(
                Event("run_end", {"status": "finished", "duration_s": starts[-1].duration_s(reader)})
            )
        if events:
            with Journal.open(run_dir) as journal:
                for event in events:
                    journal.write(event)
    except (MonitorError, OSError):
        return  # a journal that is damaged or in use stays as it is


def _epochs_of(reader: Reader) -> list[dict[str, Any]]:
    entries = [entry for entry in reader.entries({"epoch"}) if entry.event.rank == 0]
    return merge_history(epoch_record(entry.event, 0) for entry in entries)

"""What is known at the start of a run: folder, name, configuration, hardware, and a journal to continue."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flodl.core import log
from flodl.core.files import expand_user

from ..journal import Journal
from ..snapshot import epoch_record, last_step, merge_history
from .settings import flatten_config


def run_folder(owner: object, run_dir: str | os.PathLike[str] | None) -> Path:
    """Return the folder of a run; without `run_dir`, a temporary one that is deleted with its owner."""
    if run_dir is not None:
        return expand_user(run_dir)
    folder = Path(tempfile.mkdtemp(prefix="flodl-run-"))
    weakref.finalize(owner, _remove, folder, os.getpid())
    return folder


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child: the run belongs to its parent
        shutil.rmtree(folder, ignore_errors=True)


def default_name(run_dir: str | os.PathLike[str] | None) -> str:
    """Return the name of the run's folder, or of the program if there is no folder."""
    if run_dir is not None:
        return expand_user(run_dir).resolve().name
    return Path(sys.argv[0] if sys.argv else "").stem or "run"


def previous_epochs(journal: Journal, *, rank: int) -> list[dict[str, Any]]:
    """Return the epochs that a journal contains from before a resume."""
    if not journal.last_id:
        return []
    reader = journal.reader()
    starts = reader.entries({"run_start"})
    total_epochs = int(starts[-1].event.data.get("total_epochs") or 0) if starts else 0
    epochs = [entry for entry in reader.entries({"epoch"}) if entry.event.rank == rank]
    if reader.num_unreadable:
        log.warn(
            "%s: %d lines were damaged after they were written. They are skipped; `fdl monitor` lists them",
            reader.path,
            reader.num_unreadable,
        )
    return merge_history(epoch_record(entry.event, total_epochs) for entry in epochs)


def previous_step(journal: Journal, *, rank: int) -> tuple[int, int]:
    """Return the last step and its epoch from before a resume, or -1 for each."""
    return last_step(journal.reader(), rank=rank) if journal.last_id else (-1, -1)


def run_start_data(
    name: str,
    total_epochs: int,
    config: Mapping[str, Any],
    origins: Mapping[str, str],
    *,
    run_dir: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Return the data of a `run_start` event; the name of the folder tells later whether it was renamed."""
    return {
        "name": name,
        **({} if run_dir is None else {"folder": expand_user(run_dir).resolve().name}),
        **config_data(total_epochs, config, origins),
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "hardware": _hardware(),
    }


def config_data(total_epochs: int, config: Mapping[str, Any], origins: Mapping[str, str]) -> dict[str, Any]:
    """Return the data of a `config` event: settings that are known only after the start."""
    torch = sys.modules.get("torch")
    versions = {"python": platform.python_version(), "torch": getattr(torch, "__version__", None)}
    return {
        "total_epochs": total_epochs,
        "config": flatten_config(config, origins),
        "versions": {key: str(value) for key, value in versions.items() if value is not None},
    }


def _hardware() -> str:
    """Return the name of the CPU, as far as it is known, and the number of threads."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return f"{name} · {os.cpu_count()} threads"

"""How a run begins: its folder, its name, what it is set to and where it runs."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .epochs import epoch_record, history_of
from .journal import Journal
from .series import last_step


def run_folder(owner: object, run_dir: str | os.PathLike[str] | None) -> Path:
    """Give the folder of a run; where none is named, a temporary one that goes when its owner goes."""
    if run_dir is not None:
        return Path(run_dir)
    folder = Path(tempfile.mkdtemp(prefix="flodl-run-"))
    weakref.finalize(owner, _remove, folder, os.getpid())
    return folder


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child: the run is its parent's
        shutil.rmtree(folder, ignore_errors=True)


def default_name(run_dir: str | os.PathLike[str] | None) -> str:
    """Name a run after its folder, or else after the program."""
    if run_dir is not None:
        return Path(run_dir).resolve().name
    return Path(sys.argv[0] if sys.argv else "").stem or "run"


def known_epochs(journal: Journal, *, rank: int) -> list[dict[str, Any]]:
    """Give the epochs that a run told before it was continued."""
    if not journal.last_id:
        return []
    reader = journal.reader()
    starts = reader.entries({"run_start"})
    total_epochs = int(starts[-1].event.data.get("total_epochs") or 0) if starts else 0
    epochs = [entry for entry in reader.entries({"epoch"}) if entry.event.rank == rank]
    return history_of(epoch_record(entry.event, total_epochs) for entry in epochs)


def known_step(journal: Journal, *, rank: int) -> tuple[int, int]:
    """Give the last step and its epoch that a run told before it was continued, or -1 for each."""
    return last_step(journal.reader(), rank=rank) if journal.last_id else (-1, -1)


def start_facts(
    name: str, total_epochs: int, config: Mapping[str, Any], origins: Mapping[str, str]
) -> dict[str, Any]:
    """Give the data of a `run_start` event."""
    torch = sys.modules.get("torch")
    versions = {"python": platform.python_version(), "torch": getattr(torch, "__version__", None)}
    return {
        "name": name,
        "total_epochs": total_epochs,
        "config": settings(config, origins),
        "versions": {key: str(value) for key, value in versions.items() if value is not None},
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "hardware": _hardware(),
    }


def settings(config: Mapping[str, Any], origins: Mapping[str, str]) -> list[dict[str, Any]]:
    """Lay out a nested configuration as paths, values and where they come from.

    >>> settings({"optimizer": {"lr": 0.1}}, {"optimizer.lr": "fdl.yml:12"})
    [{'path': 'optimizer.lr', 'value': 0.1, 'origin': 'fdl.yml:12'}]
    """
    return [
        {"path": path, "value": value, "origin": str(origins.get(path, ""))}
        for path, value in _leaves("", config)
    ]


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _leaves(f"{prefix}.{name}" if prefix else str(name), item)
    elif prefix:
        plain = value is None or isinstance(value, (str, int, float, bool, list, tuple))
        yield prefix, value if plain else str(value)


def _hardware() -> str:
    """Name the processor, its cores and the memory, as far as they are known."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return f"{name} · {os.cpu_count()} threads"

"""The runs that a command line names: run folders, and folders of runs such as that of a sweep."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flodl.core.errors import FlodlError

if TYPE_CHECKING:
    from flodl.monitor.snapshot import Focus

# Larger journals are opened by their index only: checking every line would take too long.
_MAX_CHECKED_BYTES = 200_000_000
_OPENING_S = 3.0


@dataclass(frozen=True)
class GivenRuns:
    """The runs by themselves, the folders of runs, all runs so far, and what to compare them by."""

    single: tuple[Path, ...]
    folders: tuple[Path, ...]
    runs: tuple[Path, ...]
    focus: Focus

    @property
    def is_comparison(self) -> bool:
        return bool(self.folders) or len(self.runs) > 1


def find_given_runs(paths: Sequence[Path]) -> GivenRuns:
    """Return the runs at some paths. Raise for one that is neither a run nor a folder of runs.

    A run without a readable line is an error, or left out with a note if its folder is named. Of several
    paths, as in `runs/*`, empty folders are left out too: a program that failed early leaves one.
    """
    from flodl.monitor.journal import find_runs, journal_file, read

    single, folders, runs = [], [], []
    empty = [path for path in paths if path.is_dir() and not any(path.iterdir())]
    if 0 < len(empty) < len(paths):
        click.echo(f"left out, since they are empty: {', '.join(map(str, empty))}", err=True)
        paths = [path for path in paths if path not in empty]
    for path in paths:
        inner = find_runs(path) if path.is_dir() else []
        if inner == [path] or not (inner or _is_sweep(path)):
            next(read(journal_file(path)), None)
            single.append(path)
            runs.append(path)
            continue
        folders.append(path)
        for run in inner:
            try:
                next(read(run), None)
                runs.append(run)
            except (FlodlError, OSError) as error:
                click.echo(f"left out: {error}", err=True)
    return GivenRuns(tuple(single), tuple(folders), tuple(runs), _focus(folders))


def report_damage(runs: Sequence[Path]) -> None:
    """Name the damaged lines of journals: without them, a run would look like a shorter one."""
    from flodl.monitor.journal import damaged_lines, describe_damage, journal_file

    for file in map(journal_file, runs):
        if file.stat().st_size > _MAX_CHECKED_BYTES:
            continue
        if damaged := damaged_lines(file):
            click.echo(f"{file}: skipped {describe_damage(file, damaged)}.", err=True)


def report_damage_later(runs: Sequence[Path]) -> None:
    """Do the same while a page is served, slowly: reading every line takes longer than opening the page."""
    time.sleep(_OPENING_S)
    for run in runs:
        started_s = time.monotonic()
        with contextlib.suppress(FlodlError, OSError):  # it was renamed or deleted in the meantime
            report_damage([run])
        time.sleep(time.monotonic() - started_s)


def _is_sweep(folder: Path) -> bool:
    return folder.is_dir() and (folder / "sweep.json").is_file()


def _focus(folders: Sequence[Path]) -> Focus:
    """Return what the sweep in these folders is about: its metric, and the settings that it tries."""
    from flodl.monitor.snapshot import Focus

    for folder in filter(_is_sweep, folders):
        from flodl.cli.sweep import definition

        try:
            found = definition.load(folder) or {}
            names = tuple(str(dimension["name"]) for dimension in found.get("over", ()))
        except (FlodlError, TypeError, KeyError):  # damaged: the page shows the runs without it
            continue
        metric, mode = found.get("metric"), found.get("mode")
        if names:
            return Focus(
                metric if isinstance(metric, str) else None, mode if mode in ("min", "max") else None, names
            )
    return Focus()

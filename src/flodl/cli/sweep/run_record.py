"""What a run was made with: its settings and program files, compared with what it would get now."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flodl.cli.execution.entry_files import source_hashes
from flodl.cli.manifest.command_kind import Kind
from flodl.cli.manifest.lookup import Target
from flodl.core.errors import SetupError

_DEFAULT = "default"
_MAX_SHOWN = 3


@dataclass(frozen=True)
class RunRecord:
    """The settings of a run without its folder, each with its origin, and a hash of each program file."""

    settings: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, str]

    def differences(self, now: RunRecord) -> Iterator[str]:
        """Yield each setting that has another value now, with both values and their origins.

        A default of an option that only one version of the program has is not a setting of both.

        >>> old = RunRecord({"lr": {"value": 0.1, "origin": "fdl.yml:3"}}, {})
        >>> list(old.differences(RunRecord({"lr": {"value": 0.2, "origin": "--lr"}}, {})))
        ['lr was 0.1 (fdl.yml:3) and is now 0.2 (--lr)']
        """
        for name in {**self.settings, **now.settings}:
            old, new = self.settings.get(name), now.settings.get(name)
            if old is None or new is None:
                is_different = (old or new or {})["origin"] != _DEFAULT
            else:
                is_different = not _is_same(old["value"], new["value"])
            if is_different:
                is_now = "is no longer set" if new is None else f"is now {_shown(new)}"
                yield f"{name} was {_shown(old)} and {is_now}"

    def changed_files(self, now: RunRecord) -> list[str]:
        """Return the program files whose content is different now."""
        return [name for name, text in self.files.items() if now.files.get(name, text) != text]


def program_files(target: Target) -> dict[str, str]:
    """Return a hash of each file of a program by its path in the project."""
    manifest = target.manifest
    is_script = target.kind is Kind.RUN
    line = str((target.spec.value("run") if is_script else manifest.document.value("entry")) or "")
    return source_hashes(manifest.folder, line, project=manifest.project)


def check_settings(folder: Path, runs: Iterable[tuple[str, RunRecord, RunRecord]]) -> None:
    """Raise if a run, given with its record and the one that it would have now, has other settings now."""
    for name, old, now in runs:
        found = list(old.differences(now))
        if found:
            more = f", and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
            raise SetupError(
                f"{folder} holds a different sweep: for its run {name}, {'; '.join(found[:_MAX_SHOWN])}{more}"
                ". Pass a new folder as --out, resume that sweep with its settings, or delete the folder to "
                "repeat its runs."
            )


def changed_program(runs: Iterable[tuple[str, RunRecord, RunRecord]]) -> str:
    """Return a warning with the program files that have changed since the runs were made, or nothing."""
    for name, old, now in runs:
        if files := old.changed_files(now):
            verb = "has" if len(files) == 1 else "have"
            return (
                f"{', '.join(files)} {verb} changed since run {name} was made. Its results are those of the "
                "old program. To repeat the runs, pass a new folder as --out."
            )
    return ""


def _is_same(old: Any, new: Any) -> bool:
    """Return whether two values are equal. Numbers are text if the options of the program were unknown."""
    if json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True):
        return True
    if isinstance(old, bool) or isinstance(new, bool):
        return False
    try:
        return isinstance(old, str) != isinstance(new, str) and float(old) == float(new)
    except (TypeError, ValueError):
        return False


def _shown(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "not set"
    text = json.dumps(entry["value"], ensure_ascii=False)
    return f"{text if len(text) <= 100 else f'{text[:100]}…'} ({entry['origin']})"

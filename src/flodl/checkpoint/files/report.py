"""What became of every tensor when a checkpoint was loaded or migrated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LoadReport:
    """Names by fate: `loaded`, `skipped` (only in the file), `missing` (only in the model).

    `retyped` are those of the loaded ones whose type was converted to the model's. `same_function` says
    whether the file was written by a graph that computes the same function; None where one of the two
    does not know.

    >>> print(LoadReport(loaded=("linear_1.weight",), missing=("head.weight",)))
    1 loaded, 1 missing (head.weight)
    """

    loaded: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    same_function: bool | None = None
    retyped: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether the file and the model had exactly the same names."""
        return not self.skipped and not self.missing

    def __str__(self) -> str:
        words = [f"{len(self.loaded)} loaded"]
        for fate in ("skipped", "missing", "retyped"):
            words += _counted(fate, getattr(self, fate))
        if self.same_function is False:
            words.append("written by a graph that computes something else")
        return ", ".join(words)


@dataclass(frozen=True)
class MigrateReport:
    """Names by fate: `unchanged`, `remapped` (old name, new name), `dropped` (only in the file), `missing`.

    `metadata` are the notes of the file that were kept, `dropped_metadata` those that had no place.

    >>> print(MigrateReport(unchanged=("a",), remapped=(("old.b", "b"),)))
    1 unchanged, 1 remapped (old.b → b)
    """

    unchanged: tuple[str, ...] = ()
    remapped: tuple[tuple[str, str], ...] = ()
    dropped: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    dropped_metadata: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every tensor of the file found its place, and every place its tensor."""
        return not self.dropped and not self.missing

    def __str__(self) -> str:
        words = [f"{len(self.unchanged)} unchanged"]
        words += _counted("remapped", [f"{old} → {new}" for old, new in self.remapped])
        words += _counted("dropped", self.dropped) + _counted("missing", self.missing)
        words += _counted("kept in metadata", self.metadata)
        return ", ".join(words + _counted("dropped from metadata", self.dropped_metadata))


def _counted(fate: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    more = f", … {len(names) - 4} more" if len(names) > 4 else ""
    return [f"{len(names)} {fate} ({', '.join(names[:4])}{more})"]

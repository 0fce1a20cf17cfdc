"""Reports of what happened to each tensor when a checkpoint was loaded or migrated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LoadReport:
    """Names by outcome: `loaded`, `skipped` (only in the file), `missing` (only in the model).

    `retyped` lists the loaded names whose values were cast to the dtype of the model. `same_function` is
    whether the graph that wrote the file computes the same function, or None if that is unknown.

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
        parts = [f"{len(self.loaded)} loaded"]
        for outcome in ("skipped", "missing", "retyped"):
            parts += _summary(outcome, getattr(self, outcome))
        if self.same_function is False:
            parts.append("written by a graph that computes a different function")
        return ", ".join(parts)


@dataclass(frozen=True)
class MigrateReport:
    """Names by outcome: `unchanged`, `remapped` (old, new), `dropped` (only in the file), `missing`.

    `metadata` lists the metadata keys that were kept, `dropped_metadata` those that the format cannot store.
    `guessed` lists the names whose tensor is one of several of the same shape, chosen only by their order, or
    of which file and model have different numbers: it may be a wrong one.

    >>> print(MigrateReport(unchanged=("a",), remapped=(("old.b", "b"),)))
    1 unchanged, 1 remapped (old.b → b)
    """

    unchanged: tuple[str, ...] = ()
    remapped: tuple[tuple[str, str], ...] = ()
    dropped: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    dropped_metadata: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every tensor of the file was used and every name of the model was found."""
        return not self.dropped and not self.missing

    def __str__(self) -> str:
        parts = [f"{len(self.unchanged)} unchanged"]
        parts += _summary("remapped", [f"{old} → {new}" for old, new in self.remapped])
        parts += _summary("dropped", self.dropped) + _summary("missing", self.missing)
        parts += _summary("guessed by order", self.guessed)
        parts += _summary("kept in metadata", self.metadata)
        return ", ".join(parts + _summary("dropped from metadata", self.dropped_metadata))


def _summary(outcome: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    more = f", … {len(names) - 4} more" if len(names) > 4 else ""
    return [f"{len(names)} {outcome} ({', '.join(names[:4])}{more})"]

"""`LoadReport`: what happened to each tensor of a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LoadReport:
    """Keys of a checkpoint by outcome.

    `missing` lists the tensors that the checkpoint does not have, which are newly initialized with `seed`.
    `unexpected` lists keys that no model of this family has, and `dropped` those that this model does not
    need, with the reason. `renamed` maps old spellings to the current ones.

    >>> print(LoadReport("tiny", ("a", "b"), missing=("classifier.weight",), seed=0))
    tiny: 2 tensors loaded; 1 missing, newly initialized with seed 0 (classifier.weight)
    """

    source: str
    loaded: tuple[str, ...]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    dropped: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seed: int | None = None

    @property
    def is_complete(self) -> bool:
        """Whether no tensor was missing, and all tensors of the checkpoint were known."""
        return not self.missing and not self.unexpected

    def __str__(self) -> str:
        parts = [f"{self.source}: {len(self.loaded)} tensors loaded"]
        if self.missing:
            what = f"missing, newly initialized with seed {self.seed}"
            parts.append(f"{len(self.missing)} {what} ({_some(self.missing)})")
        if self.unexpected:
            parts.append(f"{len(self.unexpected)} unexpected, ignored ({_some(self.unexpected)})")
        reasons: dict[str, list[str]] = {}
        for key, reason in self.dropped.items():
            reasons.setdefault(reason, []).append(key)
        for reason, keys in reasons.items():
            parts.append(f"{len(keys)} dropped: {reason} ({_some(keys)})")
        if self.renamed:
            pairs = [f"{old} → {new}" for old, new in self.renamed.items()]
            parts.append(f"{len(pairs)} renamed ({_some(pairs)})")
        return "; ".join([*parts, *self.notes])


def _some(names: Collection[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = list(names)[:4]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f", … {rest} more" if rest else "")

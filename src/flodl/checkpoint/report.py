"""What became of every tensor when a checkpoint was loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoadReport:
    """Names by fate: `loaded`, `skipped` (only in the file), `missing` (only in the model).

    `same_function` says whether the file was written by a graph that computes the same function;
    None where one of the two does not know.

    >>> print(LoadReport(loaded=("linear_1.weight",), missing=("head.weight",)))
    1 loaded, 1 missing (head.weight)
    """

    loaded: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    same_function: bool | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the file and the model had exactly the same names."""
        return not self.skipped and not self.missing

    def __str__(self) -> str:
        words = [f"{len(self.loaded)} loaded"]
        for fate, names in (("skipped", self.skipped), ("missing", self.missing)):
            if names:
                more = f", … {len(names) - 4} more" if len(names) > 4 else ""
                words.append(f"{len(names)} {fate} ({', '.join(names[:4])}{more})")
        if self.same_function is False:
            words.append("written by a graph that computes something else")
        return ", ".join(words)

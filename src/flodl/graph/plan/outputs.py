"""Several named outputs of one graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NamedOutputs:
    """Return values as a dict, in the order of their names.

    >>> NamedOutputs(("logits", "value"))(1, 2)
    {'logits': 1, 'value': 2}
    """

    names: tuple[str, ...]

    def __call__(self, *values: Any) -> dict[str, Any]:
        return dict(zip(self.names, values))

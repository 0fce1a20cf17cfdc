"""The latest value of each step metric, with its step: metrics may be recorded at different steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class StepValues:
    """Keep the latest value of each metric and its step.

    >>> values = StepValues()
    >>> values.add({"step": 8, "metrics": {"loss": 0.5, "accuracy": 0.9}})
    >>> values.by_step()
    [('', {'loss': 0.5, 'accuracy': 0.9})]
    >>> values.add({"step": 9, "metrics": {"loss": 0.4}})
    >>> values.by_step()
    [('step 9', {'loss': 0.4}), ('step 8', {'accuracy': 0.9})]
    """

    def __init__(self) -> None:
        self.latest: dict[str, Any] = {}
        # The latest epoch; -1 if none is known.
        self.epoch = -1
        self._steps: dict[str, int] = {}

    def add(self, data: Mapping[str, Any]) -> None:
        """Add the data of a "metrics" event."""
        epoch = data.get("epoch")
        self.epoch = self.epoch if epoch is None else max(self.epoch, int(epoch))
        self.latest.update(data["metrics"])
        self._steps.update(dict.fromkeys(data["metrics"], data["step"]))

    def by_step(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the values of each step and its name, the newest first; "" if it is the only one."""
        groups: dict[int, dict[str, Any]] = {}
        for name, value in self.latest.items():
            groups.setdefault(self._steps[name], {})[name] = value
        newest_first = sorted(groups, reverse=True)
        return [(f"step {step}" if len(groups) > 1 else "", groups[step]) for step in newest_first]

"""The means of an accumulation window: a step in a record is an update, and not one of its batches."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class WindowMeans:
    """Means of the loss and the named values of a window, weighted by samples as the update is.

    >>> import torch
    >>> window = WindowMeans()
    >>> window.add({"loss": torch.tensor(1.0)}, 3, is_first=True)
    >>> window.add({"loss": torch.tensor(5.0)}, 1, is_first=False)
    >>> window.close()
    >>> window.last
    {'loss': tensor(2.)}
    """

    def __init__(self) -> None:
        # The means of the last window that is complete.
        self.last: dict[str, Tensor] = {}
        self._sums: dict[str, tuple[Tensor, int]] = {}

    def add(self, values: Mapping[str, Tensor], samples: int, *, is_first: bool) -> None:
        """Add a batch; the first one of a window drops what is left of one that was given up."""
        if is_first:
            self._sums = {}
        for name, value in values.items():
            if samples:
                total, weight = self._sums.get(name, (0.0, 0))
                self._sums[name] = (total + value.detach() * samples, weight + samples)

    def close(self) -> None:
        """Take the means of the batches so far."""
        self.last = {name: total / weight for name, (total, weight) in self._sums.items()}
        self._sums = {}

"""Undoing what a forward pass changes besides gradients: running statistics and carried values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from .batch_norm import RunningStatistics
from .carried import Carried


class ForwardUndo:
    """Undoes the side effects of forward passes whose update is skipped or that failed."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self._model = model
        # As they were at the start of the accumulation window, and before its current micro-batch.
        self.at_window = RunningStatistics(modules)
        self.at_micro_batch = RunningStatistics(modules)
        # Graphs, nested ones included, that carry values from call to call.
        # `hasattr` on a module that lacks the attribute is slow; on its class it is not.
        self.carriers: list[Any] = [m for m in modules if hasattr(type(m), "has_state") and m.has_state]
        self.restore_carried: list[Callable[[Tensor], None]] = []
        holders = [getattr(carrier, "carried_values", None) for carrier in self.carriers]
        # What they carry; None if there are none.
        self.carried = Carried(one for one in holders if one is not None) if self.carriers else None
        # Whether all of it is known: only graphs say where they keep it.
        self.knows_carried = all(hasattr(type(carrier), "carried_values") for carrier in self.carriers)
        # Whether there is anything to undo.
        self.has_effects = bool(self.carriers) or not self.at_window.is_empty

    def start_window(self) -> None:
        """Save the state at the start of an accumulation window."""
        self.at_window.save()
        self.keep_carried()

    def keep_carried(self) -> None:
        """Restore the values that are carried now if the update is skipped."""
        self.restore_carried = [c.keep_state() for c in self.carriers if hasattr(c, "keep_state")]

    def detach_carried(self) -> None:
        """Detach what is carried, as after every micro-batch."""
        for carrier in self.carriers:
            carrier.detach_state()
        if self.carried is not None:
            self.carried.make_dense()

    def start_micro_batch(self) -> None:
        """Save the state before a micro-batch that does not start its window."""
        self.at_micro_batch.save()

    def undo(self, *, opens: bool) -> None:
        """Undo the forward pass of a micro-batch that failed."""
        (self.at_window if opens else self.at_micro_batch).restore()

    def undo_where(self, bad: Tensor) -> None:
        """Undo the forward passes of the window if the flag on the device is set."""
        self.at_window.restore_where(bad)
        for restore_where in self.restore_carried:
            restore_where(bad)

    def separate(self) -> ForwardUndo:
        """Return one for the same model that keeps its copies in its own memory."""
        return ForwardUndo(self._model)

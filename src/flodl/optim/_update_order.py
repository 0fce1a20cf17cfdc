"""Notes that a bridge is stepped before the optimizer, or never."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from flodl.core import log

from ._unobserved import was_stopped_by_error

_MOST_PARAMETERS = 64
# A shorter run may be over before the first epoch, after which some programs step.
_UPDATES_OF_A_RUN = 100


class UpdateOrder:
    """See from the weights whether the optimizer updates them between the steps of a bridge.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> order = UpdateOrder([{"params": [weight]}])
    >>> with torch.no_grad():
    ...     _ = weight.add_(1.0)
    >>> order.num_changes()
    1
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        parameters = [one for group in groups for one in group["params"]]
        self._parameters = [weakref.ref(one) for one in parameters[:_MOST_PARAMETERS]]
        self._created = self._versions()
        # The versions at the first step of a bridge that came before any update.
        self._at_early_step: list[int] | None = None
        self.steps = 0
        # Whether the schedule has left its first rate, even without a call to `step`.
        self.is_moved = False

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy belongs to other weights.
        return UpdateOrder, ([],)

    def num_changes(self) -> int:
        """Return how often a weight was written to since the bridge was created; a replay does not count."""
        return max((now - then for now, then in zip(self._versions(), self._created)), default=0)

    def count_step(self) -> None:
        """Count a step of the bridge; warn once if an update comes after the first one, but none before.

        A `GradScaler` leaves out the first update if the gradients are not finite.
        """
        self.steps += 1
        if self.steps > 2:
            return
        versions = self._versions()
        if self.steps == 1:
            if versions and versions == self._created and self._are_gradients_finite():
                self._at_early_step = versions
        elif self._at_early_step is not None and versions != self._at_early_step:
            log.warn(
                "bridge.step() was called before optimizer.step(), so the first rate of the schedule was not "
                "used. Call bridge.step() after each update."
            )

    def note_at_end_of(self, bridge: object, lr_of: Callable[[int], float]) -> None:
        """Note when a bridge is deleted, or the program ends without an error, that it was never stepped."""
        weakref.finalize(bridge, self._note_at_end, lr_of)

    def _note_at_end(self, lr_of: Callable[[int], float]) -> None:
        num_updates = 0 if self.is_moved or was_stopped_by_error() else self.num_changes()
        if num_updates >= _UPDATES_OF_A_RUN and _differ(lr_of, num_updates):
            log.warn(
                "a schedule was given to flodl.optim.apply, but bridge.step() was never called, so the "
                "learning rate did not change in about %d updates. Call it after each update, on the bridge "
                "that apply returned, or pass schedule=… to a TrainStep or a Trainer.",
                num_updates,
            )

    def _versions(self) -> list[int]:
        try:
            return [one._version for reference in self._parameters if (one := reference()) is not None]
        except RuntimeError:  # a tensor that was created in inference mode
            return []

    def _are_gradients_finite(self) -> bool:
        grads = (one.grad for reference in self._parameters if (one := reference()) is not None)
        return all(bool(grad.isfinite().all()) for grad in grads if grad is not None)


def _differ(lr_of: Callable[[int], float], num_updates: int) -> bool:
    """Return whether a schedule has rates other than its first one."""
    try:
        return len({float(lr_of(step)) for step in range(0, num_updates, max(1, num_updates // 50))}) > 1
    except Exception:  # raised by the code of a user
        return False

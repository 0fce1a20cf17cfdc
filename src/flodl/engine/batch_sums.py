"""What each batch has added to the running means of a step, so that it can be removed again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .step import TrainStep

Sums = dict[tuple[str, ...], Tensor]


class BatchSums:
    """The sums of a step after each batch; nothing waits for the device until `left_out`.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    >>> step = TrainStep(model, optimizer, lambda m, x: m(x).mean() * 0 + x.mean())
    >>> sums = BatchSums(step)
    >>> for value in (1.0, torch.nan, 3.0):
    ...     loss = step(torch.full((4, 2), value))
    ...     sums.note()
    >>> sums.left_out()
    [False, True, False]
    >>> sums.remove([True, False, False])
    >>> step.means()["loss"].item()
    3.0
    """

    def __init__(self, step: TrainStep) -> None:
        self._means, self._reduction = step._body.means, step._body.reduction
        self._num_bad_before = self._num_bad_here()
        self._after = [self._now()]
        self._is_empty: list[bool] = []

    def _num_bad_here(self) -> Tensor:
        return torch.zeros(()) if self._reduction is None else self._reduction.num_bad_here.clone()

    def not_finite_here(self) -> int:
        """Return for how many updates this rank's own loss or gradients were not finite."""
        return int((self._num_bad_here() - self._num_bad_before).item())

    def _now(self) -> Sums:
        return {names: total.clone() for names, total in self._means.totals.items()}

    def note(self, *, is_empty: bool = False) -> None:
        """Take the sums after a batch; an empty one adds nothing to them."""
        self._after.append(self._after[-1] if is_empty else self._now())
        self._is_empty.append(is_empty)

    def left_out(self) -> list[bool]:
        """Return for each batch whether it is missing in the sums because its loss was not finite."""
        weights = [sum(float(total[0]) for total in sums.values()) for sums in self._after]
        return [
            not is_empty and now == before
            for is_empty, before, now in zip(self._is_empty, weights, weights[1:])
        ]

    def remove(self, chosen: Sequence[bool]) -> None:
        """Subtract what the chosen batches have added."""
        for is_chosen, before, now in zip(chosen, self._after, self._after[1:]):
            for names, total in now.items() if is_chosen else ():
                added = total - before[names] if names in before else total
                self._means.totals[names].sub_(added)

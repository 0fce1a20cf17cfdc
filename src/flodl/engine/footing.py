"""What every faster tier rests on and a user may change between two steps; cheap to look at."""

from __future__ import annotations

from operator import attrgetter

from .body import StepBody

LEARNS, TRAINING = attrgetter("requires_grad"), attrgetter("training")


class Footing:
    """Which parameters learn and which modules train, as they were.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> model = torch.nn.Linear(2, 1)
    >>> footing = Footing(SimpleNamespace(model=model, parameters=list(model.parameters())))
    >>> footing.what_changed(), model.eval() and footing.what_changed()
    (None, 'a module was switched between training and evaluation')
    """

    def __init__(self, body: StepBody) -> None:
        self.body = body
        self.modules = list(body.model.modules())
        self.learns = [*map(LEARNS, body.parameters)]
        self.training = [*map(TRAINING, self.modules)]

    def what_changed(self) -> str | None:
        """Name what no longer is as it was."""
        if [*map(LEARNS, self.body.parameters)] != self.learns:
            return "a parameter was frozen or thawed"
        if [*map(TRAINING, self.modules)] != self.training:
            return "a module was switched between training and evaluation"
        return None

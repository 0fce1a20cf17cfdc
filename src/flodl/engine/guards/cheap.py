"""What every faster tier rests on and a user may change between two steps; cheap to look at."""

from __future__ import annotations

from operator import attrgetter, itemgetter

from ..device.torch_flags import autocast_state
from ..program.program import StepBody

LEARNS, TRAINING, FLAG = attrgetter("requires_grad"), attrgetter("training"), itemgetter("training")


class Footing:
    """Which parameters learn and which modules train, as they were.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> model = torch.nn.Linear(2, 1)
    >>> cpu, parameters = torch.device("cpu"), [*model.parameters()]
    >>> footing = Footing(SimpleNamespace(model=model, parameters=parameters, device=cpu))
    >>> footing.what_changed(), model.eval() and footing.what_changed()
    (None, 'a module was switched between training and evaluation')
    """

    def __init__(self, body: StepBody) -> None:
        self.body = body
        modules = list(body.model.modules())
        self.learns = [*map(LEARNS, body.parameters)]
        # To ask a module's own dictionary takes half as long as to ask the module.
        self.modules = [vars(module) for module in modules if "training" in vars(module)]
        self.training = [*map(FLAG, self.modules)]
        # Those that keep it elsewhere, such as scripted ones.
        self.others = [module for module in modules if "training" not in vars(module)]
        self.others_training = [*map(TRAINING, self.others)]
        # Of a batch on the short way torch's own guards see it.
        self.casting = autocast_state(body.device.type)

    def what_changed(self) -> str | None:
        """Name what no longer is as it was."""
        learns = [*map(LEARNS, self.body.parameters)]
        if learns != self.learns:
            is_same = len(learns) == len(self.learns)
            return "a parameter was frozen or thawed" if is_same else "the optimizer holds other parameters"
        others = [*map(TRAINING, self.others)]
        if [*map(FLAG, self.modules)] != self.training or others != self.others_training:
            return "a module was switched between training and evaluation"
        if autocast_state(self.body.device.type) != self.casting:
            return "torch.autocast was switched on or off around the step"
        return None

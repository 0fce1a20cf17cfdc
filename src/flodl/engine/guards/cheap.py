"""Guard that is cheap enough for every step: frozen parameters, training modes, autocast."""

from __future__ import annotations

from operator import attrgetter, itemgetter

from ..device.torch_flags import autocast_state
from ..program.program import StepBody

REQUIRES_GRAD, TRAINING, TRAINING_FLAG = (
    attrgetter("requires_grad"),
    attrgetter("training"),
    itemgetter("training"),
)


class CheapGuard:
    """Which parameters require gradients and which modules train, as they were.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> model = torch.nn.Linear(2, 1)
    >>> cpu, parameters = torch.device("cpu"), [*model.parameters()]
    >>> guard = CheapGuard(SimpleNamespace(model=model, parameters=parameters, device=cpu))
    >>> guard.what_changed(), model.eval() and guard.what_changed()
    (None, 'a module was switched between training and evaluation')
    """

    def __init__(self, body: StepBody) -> None:
        self._body = body
        modules = list(body.model.modules())
        self.requires_grad = [*map(REQUIRES_GRAD, body.parameters)]
        # Reading a module's own dictionary takes half as long as reading the attribute.
        self.modules = [vars(module) for module in modules if "training" in vars(module)]
        self.training = [*map(TRAINING_FLAG, self.modules)]
        # Modules that keep the flag elsewhere, such as scripted ones.
        self.other_modules = [module for module in modules if "training" not in vars(module)]
        self._others_training = [*map(TRAINING, self.other_modules)]
        self.autocast = autocast_state(body.device.type)

    def what_changed(self) -> str | None:
        """Return what differs, or None."""
        requires_grad = [*map(REQUIRES_GRAD, self._body.parameters)]
        if requires_grad != self.requires_grad:
            same_length = len(requires_grad) == len(self.requires_grad)
            return (
                "a parameter was frozen or thawed" if same_length else "the optimizer holds other parameters"
            )
        others = [*map(TRAINING, self.other_modules)]
        if [*map(TRAINING_FLAG, self.modules)] != self.training or others != self._others_training:
            return "a module was switched between training and evaluation"
        if autocast_state(self._body.device.type) != self.autocast:
            return "torch.autocast was switched on or off around the step"
        return None

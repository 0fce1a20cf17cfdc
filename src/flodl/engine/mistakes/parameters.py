"""Notices parameters of a model that its optimizer does not have, although it should."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from flodl.core import StepError
from flodl.optim.all_optimizers import in_any_optimizer

# The model is searched again after this many steps at most, and when a parameter gets no gradient any more.
CHECK_EVERY = 256
_MOST_NAMES = 3


def next_check(steps: int) -> int:
    """Return the step of the next search: often at first, so that short runs find mistakes, too.

    >>> [next_check(steps) for steps in (0, 1, 2, 4, 256, 1000)]
    [1, 2, 4, 8, 512, 1256]
    """
    return steps + min(max(steps, 1), CHECK_EVERY)


class TrainedParameters:
    """The parameters of a model that its optimizer updates, by name.

    >>> import torch
    >>> model = nn.Linear(2, 1)
    >>> trained = TrainedParameters(model, [*model.parameters()])
    >>> model.weight = nn.Parameter(torch.zeros(1, 2))
    >>> trained.check(model, [model.bias])
    Traceback (most recent call last):
    flodl.core.errors.StepError: at 'weight': this parameter was replaced after the TrainStep was ...
    """

    def __init__(self, model: nn.Module, parameters: Iterable[Tensor]) -> None:
        in_optimizer = set(parameters)
        self._names = set[str]()
        # Parameters that the model got later.
        self._added = set[str]()
        self._trained = dict[str, Tensor]()
        # Parameters in no optimizer that were reported, or that another optimizer has.
        self._settled = set[str]()
        # Whether a parameter may receive a gradient, for example since it was thawed, and is not settled.
        self.is_waiting = False
        for name, parameter in model.named_parameters():
            self._names.add(name)
            if parameter in in_optimizer:
                self._trained[name] = parameter

    def check(self, model: nn.Module, parameters: Iterable[Tensor]) -> str | None:
        """Raise if a parameter was replaced by one that the optimizer does not have.

        Return a warning about one that was added, since another optimizer may have it.
        """
        in_optimizer, added = set(parameters), ""
        moved = {id(parameter) for parameter in model.parameters()}
        for name, parameter in model.named_parameters():
            before = self._trained.get(name)
            if before is parameter or parameter in in_optimizer or not parameter.requires_grad:
                continue
            if before is not None and id(before) not in moved:
                raise StepError(
                    "this parameter was replaced after the TrainStep was created, and the optimizer still "
                    "has the old one, so nothing would train it. Write the values into the existing one "
                    "(with torch.no_grad(): parameter.copy_(…), or load_state_dict without assign=True), or "
                    "create the optimizer and the TrainStep again.",
                    path=name,
                )
            if name not in self._names:
                added = added or name
                self._names.add(name)
                self._added.add(name)
            self.is_waiting |= name not in self._settled and name not in self._added
        if not added:
            return None
        return (
            f"the parameter {added!r} was added after the TrainStep was created and is not in its optimizer, "
            "so this step does not train it. Pass it to optimizer.add_param_group, or freeze it"
        )

    def untrained(self, model: nn.Module, parameters: Iterable[Tensor]) -> str:
        """Return a warning about parameters with a gradient that no optimizer of the program has, or "".

        Call it after a backward: a parameter that the loss does not use has no gradient. Each parameter is
        reported once.
        """
        in_optimizer, self.is_waiting = set(parameters), False
        named = [
            (name, one)
            for name, one in model.named_parameters()
            if one not in in_optimizer and one.requires_grad and one.grad is not None
            if name not in self._added and name not in self._settled
        ]
        if named:
            # Another step may train them, as in a GAN.
            elsewhere = in_any_optimizer()
            self._settled.update(name for name, _ in named)
            of_others = [name for name, one in named if one in elsewhere]
            if of_others and in_optimizer.isdisjoint(model.parameters()):
                return (
                    "the optimizer of this step has none of the parameters of its model. Gradients reach "
                    f"{of_others[0]!r} and other parameters of another optimizer, so this step trains "
                    "something else. Pass the optimizer of this model; if the step should train another "
                    "model through this one, create the step with that model"
                )
            named = [(name, one) for name, one in named if one not in elsewhere]
        if not named:
            return ""
        shown = ", ".join(repr(name) for name, _ in named[:_MOST_NAMES])
        more = f" and {len(named) - _MOST_NAMES} more" if len(named) > _MOST_NAMES else ""
        it, receives = ("it", "it receives a gradient")
        if len(named) > 1:
            it, receives = ("them", "they receive gradients")
        return (
            f"the optimizer does not have {shown}{more} of the model, although {receives}: nothing trains "
            f"{it}. Pass {it} to the optimizer, or freeze {it} with requires_grad_(False), which saves time"
        )


def check_first_gradients(model: nn.Module, parameters: Sequence[Tensor]) -> None:
    """Raise if an optimizer has parameters of an earlier model instead of those that get gradients.

    A parameter outside the model is normal, as in a loss function; one without a gradient, while the model
    has another one that the optimizer lacks, was replaced.
    """
    check_no_copy(model, parameters)
    of_model, in_optimizer = set(model.parameters()), set(parameters)
    old = [p for p in parameters if p not in of_model and p.requires_grad and p.grad is None]
    if not old or all(parameter.grad is None for parameter in parameters):
        # Without any gradient, the update has an error of its own.
        return
    for name, parameter in model.named_parameters():
        if parameter not in in_optimizer and parameter.grad is not None and parameter.requires_grad:
            shapes = ", ".join(str(tuple(p.shape)) for p in old[:3])
            raise StepError(
                "the optimizer does not have this parameter, so nothing would train it. Instead, it has "
                f"{len(old)} that are not in the model and received no gradient (of shape {shapes}): a "
                "module was replaced after the optimizer was created. Create the optimizer after the model "
                "is complete, with model.parameters().",
                path=name,
            )


def check_no_copy(model: nn.Module, parameters: Sequence[Tensor]) -> None:
    """Raise if a copy of the model is trained in its place, as by a step function that uses a global one.

    A model that is frozen, or that has other shapes than what the optimizer has, may be meant to stay as it
    is: it may compute features, or the loss.

    >>> import copy
    >>> model = nn.Linear(2, 1)
    >>> check_no_copy(copy.deepcopy(model), [*model.parameters()])
    Traceback (most recent call last):
    flodl.core.errors.StepError: the model of the TrainStep is not the one that is trained: none of its ...
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    in_optimizer = set(parameters)
    if not trainable or any(one in in_optimizer or one.grad is not None for one in trainable):
        return
    if [one.shape for one in trainable] == [one.shape for one in parameters if one.requires_grad]:
        raise StepError(
            "the model of the TrainStep is not the one that is trained: none of its parameters is in the "
            "optimizer or received a gradient, and the optimizer has parameters of the same shapes. The step "
            "function uses a different model, such as a global one. Use its first argument, which is the "
            "model, and create the optimizer with the parameters of that model."
        )

"""The calls of `fit` that make up a run: a program that is started again makes them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from flodl.optim import ScheduleBridge

from .learning_rate import optimizer_settings


@dataclass
class FitCalls:
    """Which calls of `fit` returned, so that a restarted program trains only from the interrupted one on.

    >>> calls = FitCalls([{"epochs": 2, "optimizer": [], "lr_scale": None}])
    >>> calls.has_returned(4), calls.has_returned(2)
    (False, True)
    """

    # The calls that returned, those of the saved run and then those of this program: the total of epochs, and
    # the settings of the optimizer afterwards.
    returned: list[dict[str, Any]] = field(default_factory=list)
    # How many calls of this program have returned.
    num_made: int = 0
    # The settings of the optimizer when the current call began, if another one had returned before.
    at_begin: list[dict[str, Any]] | None = None
    # Whether the saved run was loaded in a call that had returned: the interrupted call loads it again, with
    # its data and the random state.
    loads_again: bool = False
    # The differences from the saved run that such a call has reported.
    reported: set[str] = field(default_factory=set)

    @property
    def made(self) -> list[dict[str, Any]]:
        """The calls that have returned in this program."""
        return self.returned[: self.num_made]

    def has_returned(self, epochs: int | None) -> bool:
        """Return whether the next call, with this total, returned before the run was saved."""
        return [call["epochs"] for call in self.returned[self.num_made : self.num_made + 1]] == [epochs]

    def begin(self, optimizer: Optimizer) -> None:
        """Note the settings with which the next call begins."""
        self.at_begin = optimizer_settings(optimizer) if self.num_made else None

    def end(self, epochs: int, optimizer: Optimizer, bridge: ScheduleBridge | None) -> None:
        """Note that a call with this total has returned.

        If it had returned before the run was saved, the settings are those of that moment again: what the
        program changes next, such as a rate that it scales, then has the same result.
        """
        if self.has_returned(epochs):
            _restore(self.returned[self.num_made], optimizer, bridge)
        else:
            scale = None if bridge is None else bridge.lr_scale
            call = {"epochs": epochs, "optimizer": optimizer_settings(optimizer), "lr_scale": scale}
            self.returned[self.num_made :] = [call]
        self.num_made += 1


def _restore(call: dict[str, Any], optimizer: Optimizer, bridge: ScheduleBridge | None) -> None:
    saved: Sequence[dict[str, Any]] = call["optimizer"]
    for group, settings in zip(optimizer.param_groups, saved):
        for name in settings.keys() & group.keys():
            own, value = group[name], settings[name]
            if not _is_number(value):
                continue
            if isinstance(own, Tensor) and own.numel() == 1:
                own.fill_(value)
            elif _is_number(own):
                group[name] = value
    if bridge is not None and call["lr_scale"] is not None:
        bridge.scale(call["lr_scale"])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

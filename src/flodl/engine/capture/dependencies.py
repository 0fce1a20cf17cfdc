"""What a recording depends on besides its inputs, checked before every replay: once with names, once fast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

from ..batch.signature import shared_indices
from ..device.tensors import is_conv_weight
from ..guards.cheap import REQUIRES_GRAD, TRAINING_FLAG, CheapGuard
from ..optimizer.prepare import are_in_sync, host_settings, share_a_tensor, sync_rates
from ..program.program import StepBody
from ..program.update import parameters_of, same_objects
from .recording import Recording

# A group, a getter for all its settings, their values, and how many parameters it has.
_GroupSettings = tuple[dict[str, Any], Any, Any, int]


class Dependencies:
    """The optimizer, the parameters and the mode of the modules as they were when the step was recorded.

    `what_changed` names what differs. `fast_check` checks the same facts without names; of the data pointers
    it compares only the first and the last, which finds a model that was moved, and the first of a
    convolution, whose memory format may have changed.
    """

    def __init__(self, body: StepBody, *, update_inside: bool) -> None:
        optimizer = body.optimizer
        self._body = body
        self._guard = CheapGuard(body)
        self._pointers = [parameter.data_ptr() for parameter in body.parameters]
        self._settings = host_settings(optimizer) if update_inside else []
        self._group_settings = _by_group(self._settings)
        # The updater uses different tensors once groups that shared a learning rate no longer do.
        self._rates = body.updater.rates
        self._state = optimizer.state
        self._num_states = len(optimizer.state) if update_inside else 0
        self._groups = [*optimizer.param_groups]

    def what_changed(self) -> str | None:
        """Return what differs from the time of recording, or None; cheap, since every replay asks."""
        optimizer = self._body.optimizer
        sync_rates(self._rates)
        if not are_in_sync(self._rates):
            return "one of several groups that shared a learning rate now has a different one"
        if optimizer.state is not self._state:
            return "the optimizer's state was loaded"
        if len(self._state) < self._num_states:
            return "the optimizer's state was cleared"
        if len(optimizer.param_groups) != len(self._groups):
            return "the optimizer has a different number of groups"
        if not same_objects(optimizer.param_groups, self._groups):
            return "a group of the optimizer was replaced"
        if changed := self._guard.what_changed():
            return changed
        if [parameter.data_ptr() for parameter in parameters_of(optimizer)] != self._pointers:
            return "a parameter was moved or replaced"
        for group, key, value in self._settings:
            if group[key] is not value and group[key] != value:
                return f"the optimizer's {key} was changed"
        return None

    def fast_check(self, recording: Recording[Any], turns: int) -> Callable[[Sequence[Any]], bool] | None:
        """Return a function that tells whether a batch may be replayed; None if that takes a slower check.

        It is valid for this many steps. It runs in every step of a recorded program: every name in it is
        local on purpose.
        """
        guard, rates, optimizer = self._guard, self._rates, self._body.optimizer
        if guard.other_modules or share_a_tensor(rates):
            return None
        fits, shared, width = recording.fits, recording.shared, len(recording.inputs)
        state, num_states, num_groups = self._state, self._num_states, len(self._groups)
        parameters, pointers = self._body.parameters, self._pointers
        settings = self._group_settings
        # Whether there is an autocast at all is part of the signature of the batch.
        cast_to, device_type = guard.autocast[1], self._body.device.type
        requires_grad, modules, training = guard.requires_grad, guard.modules, guard.training
        # Usually everything is trainable and in training mode, which is faster to check than each one.
        all_train = all(requires_grad) and all(training)
        convolutions = [index for index, p in enumerate(parameters) if is_conv_weight(p)][:1]
        indices = (0, len(parameters) - 1, *convolutions)
        watched = [(parameters[index].data_ptr, pointers[index]) for index in indices]

        def may_replay(batch: Sequence[Any]) -> bool:
            nonlocal turns
            turns -= 1
            if turns < 0 or len(batch) != width or not fits(*batch):
                return False
            if (
                optimizer.state is not state
                or len(state) < num_states
                or len(optimizer.param_groups) != num_groups
            ):
                return False
            for data_ptr, pointer in watched:
                if data_ptr() != pointer:
                    return False
            if all_train:
                for parameter in parameters:
                    if not parameter.requires_grad:
                        return False
                for module in modules:
                    if not module["training"]:
                        return False
            elif [*map(REQUIRES_GRAD, parameters)] != requires_grad or [
                *map(TRAINING_FLAG, modules)
            ] != training:
                return False
            for now, (group, get, kept, count) in zip(optimizer.param_groups, settings):
                if now is not group or get(group) != kept or len(group["params"]) != count:
                    return False
            if shared and shared_indices(batch) != shared:
                return False
            if cast_to is not None and torch.get_autocast_dtype(device_type) is not cast_to:
                return False
            for group, lr in rates:
                if group["lr"] is not lr:
                    sync_rates(rates)
            return True

        return may_replay


def _by_group(settings: list[tuple[dict[str, Any], str, Any]]) -> list[_GroupSettings]:
    """Return the settings group by group."""
    values_of: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
    for group, key, value in settings:
        values_of.setdefault(id(group), (group, {}))[1][key] = value
    result = []
    for group, values in values_of.values():
        get = itemgetter(*values)
        result.append((group, get, get(values), len(group["params"])))
    return result

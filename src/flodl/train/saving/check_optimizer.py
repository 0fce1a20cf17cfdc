"""Check the saved state of an optimizer: torch accepts nearly anything and fails in the next update."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Adagrad, Optimizer

from flodl.core import TrainError
from flodl.core.formats import a_type

# Chosen by torch or the training step for the device; they have no effect on the shape of the state.
_IMPLEMENTATION: dict[str, Any] = {
    "foreach": None,
    "fused": None,
    "capturable": False,
    "differentiable": False,
}
# The size of an example parameter in each of its dimensions.
_SMALL = 2
_MAX_DIMENSIONS = 16


def with_own_implementation(saved: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """Return the saved state with the implementation of this optimizer, which may be on another device."""
    groups = [
        {**group, **{name: own[name] for name in _IMPLEMENTATION if name in own}}
        for group, own in zip(saved["param_groups"], optimizer.param_groups)
    ]
    return {**saved, "param_groups": groups}


def check_groups(saved: Any, optimizer: Optimizer) -> None:
    """Raise TrainError unless the saved groups have the sizes of those of the optimizer."""
    groups, _ = _parse(saved)
    sizes = [[len(group["params"]) for group in every] for every in (groups, optimizer.param_groups)]
    if sizes[0] != sizes[1]:
        raise TrainError(
            f"the saved optimizer has groups of {sizes[0]} parameters, this one of {sizes[1]}. Nothing was "
            "loaded. Build the optimizer with the original groups. Groups that a hook adds cannot be "
            "resumed: create all of them at the start, with groups(model, {…}), and use Phase."
        )


def check_states(saved: Any, optimizer: Optimizer) -> None:
    """Raise TrainError unless the optimizer can continue from a saved state with the same groups."""
    groups, states = _parse(saved)
    replica = _with_settings(optimizer, saved)
    for index, (own, loaded) in enumerate(zip(optimizer.param_groups, replica.param_groups)):
        for name in own.keys() - {"params", "param_names", *_IMPLEMENTATION}:
            if name not in loaded or not _is_alike(loaded[name], own[name]):
                what = repr(loaded[name])[:80] if name in loaded else "missing"
                raise _malformed(f"{name!r} of group {index} is {what}, here it is {own[name]!r:.80}")
    examples = _Examples(replica)
    for group, key, parameter in _parameters(groups, optimizer):
        state = states.get(key, {})
        # Adagrad creates its state when it is built, the others in the first update with a gradient.
        is_needed = bool(state) or isinstance(optimizer, Adagrad)
        expected = examples.for_parameter(group, parameter) if is_needed else {}
        for name in expected:
            if name not in state:
                raise _malformed(f"parameter {key} of group {group} has no {name!r}")
        for name, value in state.items():
            if not isinstance(name, str):
                raise _malformed(f"parameter {key} of group {group} has the key {name!r:.80}")
            _check_value(value, expected.get(name), parameter, f"{name!r} of parameter {key}")
            if name == "step" and not _is_count(value):
                raise _malformed(f"'step' of parameter {key} is {value!r:.80}, which is not a count")


def _parse(saved: Any) -> tuple[list[Mapping[str, Any]], Mapping[int, Mapping[str, Any]]]:
    if not isinstance(saved, Mapping):
        raise _malformed(f"it is {a_type(saved)}")
    groups, states = saved.get("param_groups"), saved.get("state")
    if not isinstance(groups, list) or not all(isinstance(group, Mapping) for group in groups):
        raise _malformed("'param_groups' is not a list of dicts")
    for group in groups:
        if not isinstance(group.get("params"), list) or not all(type(key) is int for key in group["params"]):
            raise _malformed("'params' of a group is not a list of integers")
    keys = [key for group in groups for key in group["params"]]
    if len(set(keys)) != len(keys):
        raise _malformed("a parameter occurs twice")
    if not isinstance(states, Mapping) or not all(isinstance(state, Mapping) for state in states.values()):
        raise _malformed("'state' is not a dict of dicts")
    return groups, states


def _with_settings(optimizer: Optimizer, saved: Mapping[str, Any]) -> Optimizer:
    """Return a copy of the optimizer that has loaded the saved settings, but no state of parameters."""
    replica = copy.copy(optimizer)
    replica.state = defaultdict(dict)
    replica.param_groups = [dict(group) for group in optimizer.param_groups]
    try:
        # A user-defined class may add keys of its own and depend on them.
        settings = {**saved, "state": {}, "param_groups": list(saved["param_groups"])}
        type(optimizer).load_state_dict(replica, settings)
    except Exception as error:  # any class may be an optimizer
        raise _malformed(f"{type(error).__name__}: {error}") from error
    return replica


def _parameters(
    groups: Sequence[Mapping[str, Any]], optimizer: Optimizer
) -> Iterator[tuple[int, int, Tensor]]:
    """Yield each parameter with the number of its group and its key in the saved state."""
    for number, (saved, own) in enumerate(zip(groups, optimizer.param_groups)):
        for key, parameter in zip(saved["params"], own["params"]):
            yield number, key, parameter


class _Examples:
    """The state that torch's optimizers create for a parameter, found by updating a small one."""

    def __init__(self, replica: Optimizer) -> None:
        self._replica = replica
        self._is_known = type(replica).__module__.startswith("torch.optim")
        self._found: dict[tuple[object, ...], dict[str, Any]] = {}

    def for_parameter(self, group: int, parameter: Tensor) -> dict[str, Any]:
        """Return an example state, or {} if the optimizer is not one of torch's or needs more to run."""
        if not self._is_known or is_lazy(parameter) or parameter.dim() > _MAX_DIMENSIONS:
            return {}
        key = group, parameter.dim(), parameter.dtype
        if key not in self._found:
            self._found[key] = self._example(group, parameter)
        return self._found[key]

    def _example(self, group: int, parameter: Tensor) -> dict[str, Any]:
        small = torch.zeros((_SMALL,) * parameter.dim(), dtype=parameter.dtype)
        small.grad = torch.zeros_like(small)
        settings = {**self._replica.param_groups[group], **_IMPLEMENTATION}
        settings = {
            name: value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
            for name, value in settings.items()
            if name in self._replica.param_groups[group]
        }
        one = copy.copy(self._replica)
        one.state = defaultdict(dict)
        one.param_groups = [{**settings, "params": [small]}]
        if isinstance(one, Adagrad):
            return {"step": torch.zeros(()), "sum": small}
        step = type(one).step
        try:
            with torch.no_grad():
                getattr(step, "__wrapped__", step)(one)  # without the user's hooks
        except Exception:  # it needs a closure, sparse gradients or a certain shape
            return {}
        return dict(one.state[small])


def _check_value(value: Any, example: Any, parameter: Tensor, what: str) -> None:
    """Raise unless a value of the state is like the example for a small parameter."""
    if not isinstance(example, Tensor):
        if example is not None and not _is_alike(value, example):
            raise _malformed(f"{what} is {value!r:.80}, expected {a_type(example)}")
        return
    if example.numel() == 1 and example.dim() == 0:
        if not _is_number(value):
            raise _malformed(f"{what} is {value!r:.80}, expected a number")
        return
    if not isinstance(value, Tensor):
        raise _malformed(f"{what} is {value!r:.80}, expected a tensor")
    shape = example.shape
    if example.dim() == parameter.dim():
        # Adafactor has one number for each row or column, with size 1 in the other dimensions.
        shape = torch.Size(size if one == _SMALL else one for one, size in zip(shape, parameter.shape))
    if value.shape != shape:
        raise _malformed(f"{what} has shape {tuple(value.shape)}, expected {tuple(shape)}")
    if not torch.can_cast(value.dtype, example.dtype):
        raise _malformed(f"{what} is of {value.dtype}, expected {example.dtype}")


def _is_alike(value: Any, own: Any) -> bool:
    """Return whether a saved value can stand for one of this program.

    >>> _is_alike(1, 0.1), _is_alike("1", 0.1), _is_alike((0.9, 0.99), [0.9, 1]), _is_alike((0.9,), (0.9, 1))
    (True, False, True, False)
    """
    if own is None:
        return value is None or isinstance(value, bool | str) or _is_number(value)
    if value is None:
        return isinstance(own, bool)
    if isinstance(own, bool):
        return isinstance(value, bool)
    if _is_number(own):
        return _is_number(value)
    if isinstance(own, tuple | list):
        return isinstance(value, tuple | list) and len(value) == len(own) and all(map(_is_alike, value, own))
    if isinstance(own, Tensor):
        return isinstance(value, Tensor) and value.shape == own.shape
    return isinstance(value, str) if isinstance(own, str) else True


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex() and value.dtype is not torch.bool
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < 2**63


def _is_count(value: Any) -> bool:
    return _is_number(value) and math.isfinite(float(value)) and float(value) >= 0


def _malformed(what: str) -> TrainError:
    return TrainError(
        f"the part 'optimizer' of the saved run does not match: {what}. Nothing was loaded. "
        "Use another bundle, or build the optimizer as it was saved."
    )

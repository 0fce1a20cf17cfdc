"""What hooks change between two epochs that does not reach the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flodl.core import DistributedError, FlodlError, TrainError
from flodl.core.contents import Contents
from flodl.core.contents.objects import module_settings, states_of
from flodl.distributed.reduction import FlatState
from flodl.monitor.run_settings.step_function import known_objects

from ..record.changes import ABSENT, changes
from ..record.torch_hooks import describe_torch_hooks
from ..session import Session
from .optimizer_contents import OptimizerContents

_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class _Contents:
    """What ranks have copies of, at one moment."""

    flat: Tensor
    integers: Tensor
    optimizer: OptimizerContents
    attributes: Mapping[str, Any]
    torch_hooks: Mapping[str, Any]


class HookChanges:
    """Compares the objects that ranks have copies of with their state when the hooks of an epoch began.

    Changes count when training continues: after the last epoch they stay in the calling process.
    """

    def __init__(self, session: Session, state: FlatState) -> None:
        self._session, self._state = session, state
        self._before: _Contents | None = None
        # Where the changes were first seen that are still there, by what was changed.
        self._errors: dict[str, FlodlError] = {}
        self._warnings: dict[str, str] = {}
        self._reported: set[str] = set()

    def begin(self) -> None:
        """Take the current state as that of the ranks."""
        self._before = None
        self._errors, self._warnings = {}, {}

    @contextmanager
    def around(self, hook: str, epoch: int | None) -> Iterator[None]:
        """Find what a hook changes, while the context lasts."""
        where = f"in {hook}" if epoch is None else f"in {hook} of epoch {epoch + 1}"
        try:
            if self._before is None:
                self._before = self._take()
        except DistributedError as error:
            self._errors.setdefault("memory", error)
        yield
        if self._before is None:
            return
        try:
            self._compare(self._before, self._take(), where)
        except DistributedError as error:
            # A tensor that moved to other memory.
            self._errors.setdefault("memory", error)

    def check(self) -> list[str]:
        """Raise if ranks would continue without a change; return warnings about the others, once for each."""
        for error in self._errors.values():
            raise error
        found = [text for name, text in self._warnings.items() if name not in self._reported]
        self._reported.update(self._warnings)
        return found

    def _take(self) -> _Contents:
        session, state = self._session, self._state
        model = session.model
        known = known_objects(model, session.optimizer)
        return _Contents(
            state.read(state.empty()),
            state.read_integers(),
            OptimizerContents.of(session.optimizer),
            _attributes_of(model),
            describe_torch_hooks(model, session.optimizer, known),
        )

    def _compare(self, before: _Contents, now: _Contents, where: str) -> None:
        errors = {**self._other_tensors(before, now, where), **_other_optimizer(before, now, where)}
        self._errors = {name: self._errors.get(name, error) for name, error in errors.items()}
        warnings = {
            **_other_attributes(before.attributes, now.attributes, where),
            **_other_hooks(before.torch_hooks, now.torch_hooks, where),
        }
        self._warnings = {name: self._warnings.get(name, text) for name, text in warnings.items()}

    def _other_tensors(self, before: _Contents, now: _Contents, where: str) -> dict[str, FlodlError]:
        if _equal(before.flat, now.flat) and torch.equal(before.integers, now.integers):
            return {}
        state, model = self._state, self._session.model
        parameters = dict(model.named_parameters())
        names = [*parameters, *dict(model.named_buffers())]
        pairs = zip(names, state.tensors(before.flat, before.integers), state.tensors(now.flat, now.integers))
        found = [name for name, then, own in pairs if not _equal(then, own)]
        weights = [name for name in found if name in parameters]
        what = "the weights" if weights else "a buffer"
        return {
            what: TrainError(
                f"a hook changed {what} of the model ({_listed(weights or found)}) {where}. With several "
                "devices, ranks would continue without the change. Change it before fit, or train on one "
                "device."
            )
        }


def _other_optimizer(before: _Contents, now: _Contents, where: str) -> dict[str, FlodlError]:
    then, own = before.optimizer, now.optimizer
    if not then.has_same_parameters(own):
        return {"groups": _other_groups(len(then.groups), len(own.groups), where)}
    if then.has_same_state(own):
        return {}
    return {
        "optimizer": TrainError(
            f"a hook changed the state of the optimizer {where}. With several devices, each rank has an "
            "optimizer of its own and would continue without the change; only settings of the parameter "
            "groups, such as lr, reach the ranks. Leave it out, or train on one device."
        )
    }


def _other_groups(before: int, now: int, where: str) -> TrainError:
    """Return the error for parameters that the optimizers of ranks do not have."""
    what = f"added parameter groups to the optimizer, which had {before} and has {now},"
    if now <= before:
        what = "changed which parameters the optimizer has"
    return TrainError(
        f"a hook {what} {where}. With several devices, each rank has an optimizer of its own, whose "
        "parameters cannot change between epochs. Pass all parameters to the optimizer before fit, and "
        "freeze those that train later (requires_grad_(False)): freezing and thawing reach the ranks. Or "
        "train on one device."
    )


def _other_attributes(before: Mapping[str, Any], now: Mapping[str, Any], where: str) -> dict[str, str]:
    paths = [path for path in {**before, **now} if before.get(path, ABSENT) != now.get(path, ABSENT)]
    found = {}
    for path in paths:
        lines = changes(path, now.get(path, ABSENT), before.get(path, ABSENT))
        found[path] = (
            f"a hook changed an attribute of a module {where}: {'; '.join(lines)}. With several devices, "
            "ranks continue without the change. Change it before fit, or train on one device"
        )
    return found


def _other_hooks(before: Mapping[str, Any], now: Mapping[str, Any], where: str) -> dict[str, str]:
    return {
        path: (
            f"a hook registered or removed hooks of torch {where}: {path}. With several devices, ranks "
            "continue without the change. Register them before fit, or train on one device"
        )
        for path in {**before, **now}
        if before.get(path) != now.get(path)
    }


def _attributes_of(model: nn.Module) -> dict[str, Any]:
    """Describe the attributes that modules do not change themselves, by path."""
    found = {}
    for path, module in model.named_modules():
        settings = module_settings(module)
        changing = states_of(module) if settings else frozenset[str]()
        for name, value in settings.items():
            if name not in changing:
                where = f"model.{path}.{name}" if path else f"model.{name}"
                found[where] = value if type(value) in _PLAIN else Contents().of(value)
    return found


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:3]))
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"

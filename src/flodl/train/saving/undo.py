"""Remember everything that loading a run changes, to restore it if the load fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flodl.core import FlodlError, TrainError
from flodl.core.rng_state import RngState
from flodl.data import Loader
from flodl.graph import graph_state, load_graph_state

from ..batches.cursor import BatchCursor
from ..callbacks.dispatch import Hooks
from ..evaluation.modes import modes_of, restore_modes
from ..session import Session

Action = Callable[[], object]


@contextmanager
def all_or_nothing(session: Session, cursor: BatchCursor, loader: Loader, hooks: Hooks) -> Iterator[None]:
    """Restore the run as it was if the block raises; an error of torch or of a hook becomes a TrainError.

    This takes a copy of the weights. At that point there are no gradients yet, which will take as much.
    """
    model, optimizer, device = session.model, session.optimizer, session.device
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [parameter for group in optimizer.param_groups for parameter in group["params"]]
    tensors += [] if session.average is None else session.average.state_dict().values()
    undo: list[Action] = [
        *_attributes(vars(cursor), vars(session), vars(session.start), vars(session.position)),
        *([] if session.skipped is None else _attributes(vars(session.skipped))),
        *_modules(model),
        *_values(tensors),
        # Loading replaces the state and the groups of an optimizer, and does not write into them.
        *_attributes(vars(optimizer), *optimizer.param_groups),
        *_step(session),
        partial(load_graph_state, model, graph_state(model), device),
        *_loader(loader),
        *_hooks(hooks),
        RngState.capture(device).restore,
    ]
    try:
        yield
    except BaseException as error:
        for action in undo:
            with suppress(Exception):  # restore the rest nevertheless
                action()
        if isinstance(error, FlodlError) or not isinstance(error, Exception):
            raise
        raise TrainError(
            f"the saved run cannot be loaded: {type(error).__name__}: {error}. Nothing was changed. Use "
            "another bundle, or resume with the program that saved it."
        ) from error


def _attributes(*tables: dict[str, Any]) -> Iterator[Action]:
    for table in tables:
        before = dict(table)
        yield table.clear
        yield partial(table.update, before)


def _modules(model: nn.Module) -> Iterator[Action]:
    """Remember which tensors each module has, its mode and its extra state."""
    modes = modes_of(model)
    for module in model.modules():
        yield from _attributes(module._parameters, module._buffers)
        yield partial(setattr, module, "_non_persistent_buffers_set", set(module._non_persistent_buffers_set))
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            yield partial(module.set_extra_state, deepcopy(module.get_extra_state()))
    yield partial(restore_modes, model, modes)


def _values(tensors: Iterable[Tensor]) -> Iterator[Action]:
    for tensor in {id(tensor): tensor.detach() for tensor in tensors if not is_lazy(tensor)}.values():
        if not tensor.is_meta and tensor.layout is torch.strided:
            yield partial(tensor.copy_, tensor.clone())


def _step(session: Session) -> Iterator[Action]:
    if session.train_step.is_between_updates:  # a half-full accumulation window has no state to return to
        yield partial(session.train_step.load_state_dict, session.train_step.state_dict())


def _loader(loader: Loader) -> Iterator[Action]:
    if not loader.is_one_shot:
        yield partial(loader.load_state_dict, loader.state_dict())


def _hooks(hooks: Hooks) -> Iterator[Action]:
    for hook in hooks.all:
        if not hasattr(hook, "load_state_dict") or not hasattr(hook, "state_dict"):
            continue
        state = None
        with suppress(Exception):  # it may not be available before the first epoch
            state = deepcopy(hook.state_dict())
        if state is not None:
            yield partial(hook.load_state_dict, state)

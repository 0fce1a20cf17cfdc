"""A sandbox for a forward pass: everything that the block changed is restored when it ends."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flodl.core import StepError
from flodl.core.interrupts import uninterrupted
from flodl.core.rng_state import RngState

from ..errors import NotRestorable
from .reachable import Reachable
from .saved_values import SavedTensor, SavedValue, save

# What the step reaches outside the model is copied up to this size. The rest must not be written to.
MAX_OUTSIDE_BYTES = 256 << 20
MAX_OBJECTS = 200_000
_is_open: ContextVar[bool] = ContextVar("_is_open", default=False)


class SandboxState:
    """A copy of the model, and of what a step function and its arguments reach besides.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    >>> calls = []
    >>> state = SandboxState(model, (calls,))
    >>> _ = model(torch.ones(3, 2)), calls.append(1)
    >>> state.restore()
    >>> model[1].num_batches_tracked.item(), calls
    (0, [])
    """

    def __init__(self, model: nn.Module, others: Iterable[Any], *, exclude: Iterable[Any] = ()) -> None:
        if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
            raise NotRestorable("the first batch initializes lazy parameters")
        excluded, modules = list(exclude), list(model.modules())
        tensors = (*model.parameters(), *model.buffers())
        hooks = [
            hook
            for module in modules
            for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        ]
        in_model = Reachable([model, *tensors], exclude=excluded, most=MAX_OBJECTS)
        outside = Reachable([*others, *hooks], exclude=[*excluded, *in_model], most=MAX_OBJECTS)
        if in_model.iterators or outside.iterators:
            kind = type((in_model.iterators or outside.iterators)[0]).__name__
            raise NotRestorable(f"the step may read from an iterator ({kind})")
        self._rng = RngState.capture(*_cuda_devices())
        copied = {*in_model.keys(), *_affordable(outside.items())}
        try:
            found = {**dict(in_model.items()), **dict(outside.items())}
            self._saved = [*_saved(found.items(), copied)]
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            raise NotRestorable(f"there is no memory for a copy of the model ({error})") from error
        # Nothing but their version tells whether these were written to.
        self._uncopied = [
            (one.value, one.value._version)
            for one in self._saved
            if isinstance(one, SavedTensor) and not one.is_copied and not one.value.is_inference()
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore everything in place; raise if something was written to that was too large to copy."""
        with uninterrupted():
            for one in self._saved:
                one.restore()
            self._rng.restore()
        for tensor, version in self._uncopied:
            if tensor._version != version:
                raise StepError(
                    f"the step writes to a tensor of shape {tuple(tensor.shape)} that is too large to be "
                    "copied or shares memory between its elements, so it cannot be restored."
                )


def _affordable(found: Iterable[tuple[Hashable, Any]]) -> set[Hashable]:
    """Return the keys of what is copied: everything that is not an array, and arrays up to a total size."""
    total, keys = 0, set()
    for key, value in found:
        size = 0
        if isinstance(value, Tensor):
            size = value.numel() * value.element_size()
        elif isinstance(value, np.ndarray):
            size = value.nbytes
        if total + size <= MAX_OUTSIDE_BYTES:
            total += size
            keys.add(key)
    return keys


def _saved(found: Iterable[tuple[Hashable, Any]], copied: Collection[Hashable]) -> Iterator[SavedValue]:
    for key, value in found:
        is_tensor = isinstance(value, Tensor)
        if key in copied and not (is_tensor and _overlaps(value)):
            yield save(value, (), {id(value)})
        elif is_tensor:
            yield save(value, {id(value)}, ())


def _overlaps(tensor: Tensor) -> bool:
    """Return whether several elements share memory, as those of `expand`."""
    strided = tensor.layout is torch.strided
    return strided and any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape))


def _cuda_devices() -> list[torch.device]:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


@contextmanager
def restored_afterwards(
    model: nn.Module, others: Iterable[Any], *, exclude: Iterable[Any] = ()
) -> Iterator[None]:
    """Restore the model and everything that the others reach when the context ends."""
    state = SandboxState(model, others, exclude=exclude)
    token = _is_open.set(True)
    try:
        yield
    finally:
        _is_open.reset(token)
        state.restore()


def refuse_in_sandbox() -> None:
    """Raise NotRestorable if a sandbox is open: the updates of a training step cannot be undone."""
    if _is_open.get():
        raise NotRestorable(
            "the step function calls another TrainStep, whose update cannot be undone here. Update the other "
            "model with a plain optimizer instead: loss.backward(), optimizer.step()."
        )

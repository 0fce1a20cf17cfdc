"""A snapshot of everything that a step may change, so that a trial can be undone."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from flodl.core.interrupts import uninterrupted
from flodl.core.rng_state import RngState
from flodl.observe import LastValues

from ..device.tensors import same_bits, widened
from ..errors import NotCapturable
from ..program.program import StepBody
from .copies import copies_of
from .reachable_state import ReachableState


class Snapshot:
    """A copy of parameters, buffers, optimizer state, scaler, RNG state, and of what else the step reaches.

    Of large tensors that the step only reaches, those in `copy_large` are copied.
    """

    def __init__(self, body: StepBody, batch: Any = (), copy_large: Collection[Tensor] = ()) -> None:
        self._live = live_state(body)
        updated = updated_state(body)
        others = {name: tensor.clone() for name, tensor in self._live.items() if name not in updated}
        self.tensors = {**copies_of(updated), **others}
        carried = body.undo.carried
        if carried is not None:
            # A replay may write to the carried tensors themselves, however large they are.
            copy_large = [*copy_large, *carried.tensors()]
            self.tensors |= {name: one.clone() for name, one in carried.named_tensors().items()}
        self._flags = [(tensor, tensor.clone()) for tensor in (body.bad, body.updater.grad_norm)]
        self._rng = RngState.capture(body.device)
        self.reachable = reached_by(body, batch, copy_large)
        self._device = body.device
        self._numbers = [
            (holder, name, value)
            for holder in (*body.optimizer.param_groups, *body.optimizer.state.values())
            if isinstance(holder, dict)
            for name, value in holder.items()
            if isinstance(value, int | float)
        ]
        self._changed_by_update = updated
        self._buffers = [
            (module, key, buffer)
            for module in body.model.modules()
            for key, buffer in module._buffers.items()
            if buffer is not None
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore everything in place, including buffers that were replaced since."""
        with uninterrupted():
            self.reachable.restore()
            for module, key, buffer in self._buffers:
                module._buffers[key] = buffer
            for holder, key, number in self._numbers:
                holder[key] = number
            for name, tensor in self._live.items():
                _restore_tensor(tensor, self.tensors[name])
            for tensor, saved in self._flags:
                tensor.copy_(saved)
            self._rng.restore()

    def drew_random_numbers(self, later: Snapshot) -> bool:
        """Return whether random numbers were drawn between this moment and a later one."""
        return not (self._rng.same_on_cpu(later._rng) and self._rng.same_on_cuda(later._rng))

    def cpu_rng_unchanged(self) -> bool:
        """Return whether the CPU generators have the state of this moment."""
        return self._rng.same_on_cpu(RngState.capture(self._device))

    def first_replaced(self, later: Snapshot) -> str | None:
        """Name the first buffer that a later snapshot has replaced, or a tensor whose memory was replaced."""
        for (module, key, mine), (_, _, theirs) in zip(self._buffers, later._buffers):
            if mine is not theirs:
                return f"the buffer {key} of {type(module).__name__}"
        moved = self.reachable.first_moved(later.reachable)
        return None if moved is None else f"the memory of a tensor of shape {tuple(moved.shape)} (p.data = …)"

    def prepare_recording(self, later: Snapshot, body: StepBody) -> None:
        """Prepare both for a recording between them.

        Detach histories that a recording cannot keep, and note the tensors outside the optimizer that get
        gradients and where modules store values.
        """
        body.side_effects.stores = later.reachable.of_class(LastValues)
        body.side_effects.lasting = self.reachable.persistent_histories(later.reachable)
        for moment in (self, later):
            moment.reachable.cut_history(body.side_effects.lasting)
        own = {*map(id, body.parameters)}
        body.side_effects.foreign = [
            tensor
            for tensor in self.reachable.written(later.reachable)
            if tensor.is_leaf and tensor.grad is not None and id(tensor) not in own
        ]

    def first_difference_now(self, body: StepBody, *, updated: bool = True) -> str | None:
        """Name the first tensor that differs from the present state, and by how much.

        Without `updated`, leave out what an update changes: only one of the two states is from after it.
        """
        now = compared_state(body)
        for name, saved in self.tensors.items():
            if not updated and name in self._changed_by_update:
                continue
            tensor = now.get(name)
            if tensor is None:
                return f"{name} exists in one run only"
            mine = saved.to(tensor.device)
            if not same_bits(mine, tensor):
                gap = (widened(mine) - widened(tensor)).abs().max().item()
                return f"{name} is off by {gap:.3g}"
        if not self._rng.same_on_cuda(RngState.capture(self._device)):
            return "the random state of the device differs"
        return None


def _restore_tensor(tensor: Tensor, saved: Tensor) -> None:
    """Write a copy back; a tensor with overlapping elements (`expand`) must not have changed."""
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape)):
        if not same_bits(tensor, saved.to(tensor.device)):
            raise NotCapturable("it changes a tensor whose elements share memory (expand)")
    else:
        tensor.copy_(saved, non_blocking=True)


def reached_by(body: StepBody, batch: Any, copy_large: Collection[Tensor]) -> ReachableState:
    """Return what a step reaches besides parameters, buffers and its optimizer."""
    return ReachableState(
        body.model,
        (body.step_fn, batch),
        exclude=(body.optimizer,),
        copied=(*body.parameters, *body.model.buffers()),
        copy_large=copy_large,
    )


def live_state(body: StepBody) -> dict[str, Tensor]:
    """Return every tensor that a step may change, by name."""
    state = updated_state(body)
    state.update({f"buffer {name}": buffer for name, buffer in body.model.named_buffers()})
    state.update({f"mean of {', '.join(names)}": total for names, total in body.means.totals.items()})
    return state


def compared_state(body: StepBody) -> dict[str, Tensor]:
    """Return the tensors of `live_state` and the values that graphs carry, by name."""
    carried = body.undo.carried
    return live_state(body) | ({} if carried is None else carried.named_tensors())


def updated_state(body: StepBody) -> dict[str, Tensor]:
    """Return the tensors that an update changes, by name: parameters, optimizer state, scaler."""
    state: dict[str, Tensor] = {}
    names = {id(parameter): name for name, parameter in body.model.named_parameters()}
    for index, parameter in enumerate(body.parameters):
        name = names.get(id(parameter), f"parameter {index}")
        state[name] = parameter.detach()
        entries = body.optimizer.state.get(parameter, {})
        for key, value in entries.items() if isinstance(entries, dict) else ():
            if isinstance(value, Tensor):
                state[f"{name} ({key})"] = value
    state["skipped updates"] = body.updater.num_skipped
    if body.scaler is not None:
        state.update({f"scaler {i}": tensor for i, tensor in enumerate(body.scaler.state())})
    return state

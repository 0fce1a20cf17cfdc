"""The values that a graph keeps after a call: tagged ones, and those carried into the next call."""

from __future__ import annotations

import re
import weakref
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flodl.core import StateError, log
from flodl.observe import CarriedValues, unshared


class FailedCall(tuple[None, ...]):
    """The tagged values of a call that raised an error: there are none."""

    __slots__ = ()


_RESET = "Call reset_state() where a sequence ends, or keep the batch size."

CarriedState = tuple[tuple[Any, ...], int | None]


class Memory(CarriedValues):
    """The tagged (`values`) and carried values of the last call. They are not part of the state dict.

    `values` is None if the last call did not keep its tags. A copy or pickle has no autograd history:
    carried values are detached and tagged values are dropped, so that a graph can be deep-copied after a
    forward.
    """

    # Of the first values that are carried with an autograd history: whether a backward has used it.
    _history: Literal["unknown", "watched", "used", "done"] = "unknown"

    def __init__(self, num_tags: int, num_carried: int) -> None:
        super().__init__((None,) * num_tags, num_carried)
        self._num_tags = num_tags

    def forget_tags(self) -> None:
        """Drop the tagged values."""
        self.values = (None,) * self._num_tags

    def forget_failed_call(self) -> None:
        """Drop the tagged values after an error: they would pass for those of the call that raised it."""
        if self.values is not None:
            self.values = FailedCall((None,) * self._num_tags)

    def reset(self) -> None:
        """Drop the carried values, so that the next call starts from the initial ones."""
        self.carried = (None,) * len(self.carried)
        self.batch = None
        self._history = "done"

    def detach(self) -> None:
        """Detach all values from the autograd graph."""
        super().detach()
        self.carried = detached(self.carried)
        self._history = "done"

    def watch_history(self) -> None:
        """Find out, once, whether a backward runs through the carried values."""
        if self._history != "unknown":
            return
        for leaf in tensors(self.carried):
            if leaf.grad_fn is not None:
                self._history = "watched"
                leaf.register_hook(partial(_note_use, weakref.ref(self)))  # type: ignore[no-untyped-call]

    def note_used_history(self, tag: str) -> None:
        """Log, once, that a carried value has the autograd history of a call whose backward has run."""
        if self._history != "used":
            return
        self._history = "done"
        if any(leaf.grad_fn is not None for leaf in tensors(self.carried)):
            log.warn(
                "note: the carried value '%s' has the autograd history of a call whose backward has run, so "
                "the next backward fails, unless that one had retain_graph=True. Call detach_state() after "
                "each backward, or end_step() after each step.",
                tag,
            )

    def snapshot(self) -> CarriedState:
        """Return the values carried now, for `restore_where`."""
        return unshared(self.carried), self.batch

    def restore_where(self, flag: Tensor, snapshot: CarriedState) -> None:
        """Restore a snapshot if the flag is set, without a host sync if no shape has changed."""
        current, structure = pytree.tree_flatten(self.carried)
        saved, saved_structure = pytree.tree_flatten(snapshot[0])
        is_same = structure == saved_structure and all(map(_can_select, current, saved))
        if flag.device.type != "cpu" and is_same:
            selected = [a if a is b else torch.where(flag.bool(), b, a) for a, b in zip(current, saved)]
            self.carried = pytree.tree_unflatten(selected, structure)
        elif bool(flag):
            self.carried, self.batch = snapshot

    def move(self, fn: Any) -> None:
        """Apply the function that `Module._apply` applies to parameters to the carried values."""
        self.carried = pytree.tree_map_only(Tensor, fn, self.carried)
        self.forget_tags()

    def check_batch(self, name: str, value: Any, stream: Any) -> None:
        """Raise if a carried value comes from a batch of a different size."""
        if self.batch is None or not isinstance(stream, Tensor) or stream.dim() == 0:
            return
        now = stream.shape[0]
        if now == self.batch:
            return
        if any(leaf.dim() > 0 and leaf.shape[0] == self.batch for leaf in tensors(value)):
            raise StateError(
                f"the carried value {name!r} comes from a batch of {self.batch}, this call has {now}. "
                f"{_RESET}"
            )

    def explain(self, error: Exception, names: list[str], stream: Any, path: str) -> StateError | None:
        """Return a clearer error if torch complains about the shape of a carried value.

        Its batch dimension is not the first, as in the hidden state of `nn.GRU`.
        """
        told = str(error).partition("\n")[0].rstrip(".")
        if type(error) is not RuntimeError or self.batch is None or not isinstance(stream, Tensor):
            return None
        sizes = {*map(int, re.findall(r"\b\d+\b", told))}
        now = stream.shape[0] if stream.dim() else self.batch
        for name, value in zip(names, self.carried):
            shapes = [[*leaf.shape] for leaf in tensors(value)]
            if now != self.batch and {now, self.batch} <= sizes and any(self.batch in one for one in shapes):
                why = f"comes from a batch of {self.batch}, this call has {now}"
            elif shape := next((one for one in shapes if "hidden" in told and str(one) in told), None):
                why = f"has shape {shape}, which is not that of this call"
            else:
                continue
            return StateError(f"the carried value {name!r} {why} ({told}). {_RESET}", path=path)
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {"carried": unshared(detached(self.carried)), "batch": self.batch, "num_tags": self._num_tags}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._num_tags = state["num_tags"]
        self.forget_tags()
        self.carried = state["carried"]
        self.batch = state["batch"]


def _note_use(memory: weakref.ref[Memory], _: Tensor) -> None:
    if (alive := memory()) is not None and alive._history == "watched":
        alive._history = "used"


def restore_all_where(snapshots: list[tuple[Memory, CarriedState]], flag: Tensor) -> None:
    """Restore the snapshot of each memory if the flag is set."""
    for memory, snapshot in snapshots:
        memory.restore_where(flag, snapshot)


def _can_select(a: Any, b: Any) -> bool:
    """Return whether one of two values can be selected on the device, by a flag."""
    are_tensors = isinstance(a, Tensor) and isinstance(b, Tensor)
    return a is b or (are_tensors and a.shape == b.shape and a.device == b.device)


def tensors(value: Any) -> list[Tensor]:
    """Return the tensors inside a nested value."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def detached(value: Any) -> Any:
    """Detach the tensors inside a nested value; it is returned as it is if none requires gradients."""
    if not any(leaf.requires_grad for leaf in tensors(value)):
        return value
    return pytree.tree_map_only(Tensor, torch.Tensor.detach, value)

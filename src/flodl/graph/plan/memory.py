"""What a graph remembers of a call: tagged values, and values carried into the next call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flodl.core import StateError

Carried = tuple[tuple[Any, ...], int | None]


class Memory:
    """Values of the last call, kept beside the graph and never in its state dict.

    It is copied and pickled without autograd history: carried values are detached copies and tagged
    values are dropped, so that a graph can be deep-copied after a forward.
    """

    def __init__(self, num_tags: int, num_carried: int) -> None:
        self.tag_values: tuple[Any, ...] = (None,) * num_tags
        self.carried: tuple[Any, ...] = (None,) * num_carried
        self.batch: int | None = None

    def forget_tags(self) -> None:
        """Drop the tagged values."""
        self.tag_values = (None,) * len(self.tag_values)

    def reset(self) -> None:
        """Drop the carried values, so that the next call is a first one."""
        self.carried = (None,) * len(self.carried)
        self.batch = None

    def detach(self) -> None:
        """Cut the autograd history of everything kept, keeping the values."""
        self.carried = detached(self.carried)
        self.tag_values = detached(self.tag_values)

    def kept(self) -> Carried:
        """Give what is carried now, for `put_back_where`."""
        return self.carried, self.batch

    def put_back_where(self, flag: Tensor, kept: Carried) -> None:
        """Carry what was kept where the flag is set; on a device the host does not ask unless it must."""
        now, form = pytree.tree_flatten(self.carried)
        was, form_before = pytree.tree_flatten(kept[0])
        alike = form == form_before and all(_alike(a, b) for a, b in zip(now, was))
        if flag.device.type != "cpu" and alike:
            chosen = [torch.where(flag.bool(), b, a) for a, b in zip(now, was)]
            self.carried = pytree.tree_unflatten(chosen, form)
        elif bool(flag):
            self.carried, self.batch = kept

    def move(self, fn: Any) -> None:
        """Apply what `Module.to` applies to parameters to the carried values."""
        self.carried = pytree.tree_map_only(Tensor, fn, self.carried)
        self.forget_tags()

    def check_batch(self, name: str, value: Any, stream: Any) -> None:
        """Refuse a carried value whose batch is not the batch of this call."""
        if self.batch is None or not isinstance(stream, Tensor) or stream.dim() == 0:
            return
        now = stream.shape[0]
        if now == self.batch:
            return
        if any(leaf.dim() > 0 and leaf.shape[0] == self.batch for leaf in tensors(value)):
            raise StateError(
                f"the carried value {name!r} comes from a batch of {self.batch}, this call has {now}. "
                "Call reset_state() where a sequence ends, or keep the batch size."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {"carried": detached(self.carried), "batch": self.batch, "num_tags": len(self.tag_values)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.tag_values = (None,) * state["num_tags"]
        self.carried = state["carried"]
        self.batch = state["batch"]


def take_back_where(kept: list[tuple[Memory, Carried]], flag: Tensor) -> None:
    """Let memories carry what was kept of each where the flag is set."""
    for memory, carried in kept:
        memory.put_back_where(flag, carried)


def _alike(one: Any, other: Any) -> bool:
    both = isinstance(one, Tensor) and isinstance(other, Tensor)
    return both and one.shape == other.shape and one.device == other.device


def tensors(value: Any) -> list[Tensor]:
    """Give the tensors inside a nested value."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def detached(value: Any) -> Any:
    """Cut the autograd history of a nested value."""
    return pytree.tree_map_only(Tensor, torch.Tensor.detach, value)

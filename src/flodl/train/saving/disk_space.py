"""Whether the disk has room for what a run is going to save."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from flodl.core.formats import format_bytes


def num_bytes_of(states: Iterable[Any]) -> int:
    """Give what the tensors of some states take, tied ones counted once.

    >>> num_bytes_of([{"a": torch.zeros(3), "b": [torch.zeros(2)]}, 5])
    20
    """
    leaves = [leaf for leaf in pytree.tree_leaves(list(states)) if isinstance(leaf, Tensor)]
    sizes = {_place_of(leaf): leaf.numel() * leaf.element_size() for leaf in leaves if not is_lazy(leaf)}
    return sum(sizes.values())


def moments_to_come_bytes(optimizer: Optimizer) -> int:
    """Give about what an optimizer that has not stepped yet will keep beside the parameters.

    >>> weight = torch.nn.Parameter(torch.zeros(10))
    >>> moments_to_come_bytes(torch.optim.AdamW([weight])), moments_to_come_bytes(torch.optim.SGD([weight]))
    (80, 0)
    """
    if optimizer.state:
        return 0
    settings = optimizer.defaults
    moments = 2 if "betas" in settings else 1 if settings.get("momentum") else 0
    return moments * num_bytes_of(group["params"] for group in optimizer.param_groups)


def lack_of_room(folder: Path, bundle_bytes: int, *, at_once: int, bytes_there: int = 0) -> str:
    """Say that so many saves, of which some bytes are there already, do not fit; nothing where they do."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return ""
    needed = max(bundle_bytes, at_once * bundle_bytes - bytes_there)
    if needed <= free:
        return ""
    several = f" and {at_once} of them will be there at once" if at_once > 1 else ""
    return (
        f"{str(folder)!r} has {format_bytes(free)} free, but a save takes about {format_bytes(bundle_bytes)}"
        f"{several}. Saving will fail when the disk is full. Make room, keep fewer saves, or choose another "
        "checkpoint_dir."
    )


def _place_of(tensor: Tensor) -> int:
    return tensor.data_ptr() if tensor.layout == torch.strided and not tensor.is_meta else id(tensor)

"""Checks whether the disk has room for the saves of a run."""

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
    """Return the size of the tensors in some states, counting tied ones once.

    >>> num_bytes_of([{"a": torch.zeros(3), "b": [torch.zeros(2)]}, 5])
    20
    """
    leaves = [leaf for leaf in pytree.tree_leaves(list(states)) if isinstance(leaf, Tensor)]
    sizes = {_memory_of(leaf): leaf.numel() * leaf.element_size() for leaf in leaves if not is_lazy(leaf)}
    return sum(sizes.values())


def expected_optimizer_bytes(optimizer: Optimizer) -> int:
    """Return the approximate size of the state that an optimizer will create in its first step.

    >>> weight = torch.nn.Parameter(torch.zeros(10))
    >>> [expected_optimizer_bytes(kind([weight])) for kind in (torch.optim.AdamW, torch.optim.SGD)]
    [80, 0]
    """
    if optimizer.state:
        return 0
    settings = optimizer.defaults
    moments = 2 if "betas" in settings else 1 if settings.get("momentum") else 0
    return moments * num_bytes_of(group["params"] for group in optimizer.param_groups)


def space_warning(folder: Path, bundle_bytes: int, *, at_once: int, existing_bytes: int = 0) -> str:
    """Return a warning if `at_once` bundles, some of which exist already, do not fit on the disk, or ""."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return ""
    needed = max(bundle_bytes, at_once * bundle_bytes - existing_bytes)
    if needed <= free:
        return ""
    several = f", and {at_once} of them will exist at the same time" if at_once > 1 else ""
    return (
        f"{str(folder)!r} has {format_bytes(free)} free, but a save takes about {format_bytes(bundle_bytes)}"
        f"{several}. Saving will fail when the disk is full. Free some space, keep fewer saves, "
        "or choose a different checkpoint_dir."
    )


def _memory_of(tensor: Tensor) -> int:
    return tensor.data_ptr() if tensor.layout == torch.strided and not tensor.is_meta else id(tensor)

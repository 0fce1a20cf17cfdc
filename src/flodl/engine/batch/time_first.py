"""Batches in which every tensor is [time, batch, …], as nn.GRU and nn.LSTM read them without batch_first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from .tree import leaves_of


@contextmanager
def recurrent_inputs(model: nn.Module) -> Iterator[set[tuple[int, int]]]:
    """Yield a set that collects the time steps and samples of the inputs of time-first recurrent modules.

    >>> import torch
    >>> gru = nn.GRU(3, 4)
    >>> with recurrent_inputs(gru) as found:
    ...     _ = gru(torch.zeros(7, 2, 3))
    >>> found
    {(7, 2)}
    """
    found: set[tuple[int, int]] = set()

    def collect(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        first = inputs[0] if inputs else None
        if isinstance(first, Tensor) and first.ndim == 3:
            found.add((first.shape[0], first.shape[1]))

    modules = [*model.modules()]
    # A new hook would make torch recompile a module that the user has compiled.
    is_compiled = any(hasattr(one, "_orig_mod") or one._compiled_call_impl is not None for one in modules)
    recurrent = [one for one in modules if isinstance(one, nn.RNNBase) and not one.batch_first]
    hooks = [] if is_compiled else [one.register_forward_pre_hook(collect) for one in recurrent]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def leading_dimensions(batch: tuple[Any, ...]) -> tuple[int, int] | None:
    """Return the first two dimensions if all tensors share them and they differ; else None.

    >>> import torch
    >>> leading_dimensions((torch.zeros(7, 2, 3), torch.zeros(7, 2))), leading_dimensions((torch.zeros(7),))
    ((7, 2), None)
    """
    tensors = [leaf for leaf in leaves_of(batch) if isinstance(leaf, Tensor) and leaf.ndim]
    if any(leaf.is_nested for leaf in tensors):  # samples of different lengths: batch first
        return None
    shapes = {tuple(leaf.shape[:2]) for leaf in tensors}
    shared = shapes.pop() if len(shapes) == 1 else ()
    return shared if len(shared) == 2 and shared[0] != shared[1] else None


def varying_rows(before: tuple[int, int], now: tuple[int, int]) -> str:
    """Return a warning about batches that count as many samples as they have time steps.

    >>> varying_rows((7, 16), (7, 2))[:57]
    'a batch counts as 7 samples, the rows of its first tensor'
    """
    return (
        f"a batch counts as {now[0]} samples, the rows of its first tensor, but a recurrent module without "
        f"batch_first reads them as time steps of {now[1]} samples, and an earlier batch had {before[1]}: "
        f"batches get the wrong weights. Pass the number of samples, step.call((x, y), samples={now[1]}), "
        "or put the batch dimension first"
    )

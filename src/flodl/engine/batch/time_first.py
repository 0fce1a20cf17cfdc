"""Batches whose tensors are [time, batch, …], as nn.GRU and nn.Transformer read them without batch_first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .tree import leaves_of


@dataclass
class Calls:
    """What the calls of a model say about the dimensions of a batch."""

    # The time steps and samples of the inputs of recurrent modules and attention.
    inputs: set[tuple[int, int]] = field(default_factory=set)
    # The rows of what the model returned.
    output_rows: set[int] = field(default_factory=set)

    def confirm(self, dimensions: tuple[int, int]) -> bool:
        """Return whether these are the time steps and samples of a batch."""
        return dimensions in self.inputs or dimensions[1] in self.output_rows


@contextmanager
def time_first_calls(model: nn.Module) -> Iterator[Calls]:
    """Yield what a model reads and returns in the block, as far as it tells time steps from samples.

    >>> import torch
    >>> gru = nn.GRU(3, 4)
    >>> with time_first_calls(gru) as found:
    ...     _ = gru(torch.zeros(7, 2, 3))
    >>> found
    Calls(inputs={(7, 2)}, output_rows={7})
    """
    found = Calls()

    def collect(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        first = next(iter((*inputs, *named.values())), None)
        if isinstance(first, Tensor) and not first.is_nested and first.ndim == 3:
            found.inputs.add((first.shape[0], first.shape[1]))

    def collect_rows(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        leaf = next((one for one in leaves_of(output) if isinstance(one, Tensor)), None)
        if leaf is not None and not leaf.is_nested and leaf.ndim:
            found.output_rows.add(len(leaf))

    modules = [*model.modules()]
    # A new hook would make torch recompile a module that the user has compiled.
    takes_hooks = not any(hasattr(one, "_orig_mod") or one._compiled_call_impl is not None for one in modules)
    hooks = []
    if takes_hooks:
        by_time = nn.RNNBase, nn.MultiheadAttention
        hooks = [
            one.register_forward_pre_hook(collect, with_kwargs=True)
            for one in modules
            if isinstance(one, by_time) and not one.batch_first
        ]
        if not isinstance(model, torch.jit.ScriptModule):
            hooks.append(model.register_forward_hook(collect_rows))
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
        f"a batch counts as {now[0]} samples, the rows of its first tensor, but a recurrent module or "
        f"attention without batch_first reads them as time steps of {now[1]} samples, and an earlier batch "
        f"had {before[1]}: batches get the wrong weights. Put the batch dimension first, or, in a loop with "
        f"a TrainStep, pass the number of samples: step.call((x, y), samples={now[1]})"
    )


def samples_as_time(batch: tuple[Any, ...], calls: Calls) -> str:
    """Return a warning if modules read the samples of a batch as time steps, or "".

    A batch certainly has samples first if another tensor has one value for each of them, and none has time
    steps as well.

    >>> import torch
    >>> gru, batch = nn.GRU(3, 4), (torch.zeros(7, 5, 3), torch.zeros(7))
    >>> with time_first_calls(gru) as found:
    ...     _ = gru(batch[0])
    >>> samples_as_time(batch, found)[:58]
    'a recurrent module or attention without batch_first takes '
    """
    tensors = [leaf for leaf in leaves_of(batch) if isinstance(leaf, Tensor) and not leaf.is_nested]
    rows = {len(leaf) if leaf.ndim else 0 for leaf in tensors}
    if len(rows) != 1 or not any(leaf.numel() == len(leaf) for leaf in tensors if leaf.ndim):
        return ""
    (count,) = rows
    for samples, steps in calls.inputs:
        alike = [leaf for leaf in tensors if leaf.ndim > 1 and leaf.shape[:2] == (samples, steps)]
        if samples == count > 1 and steps > 1 and samples != steps and len(alike) <= 1:
            return (
                "a recurrent module or attention without batch_first takes [time, batch, features], but its "
                f"input starts with the {count} samples of the batch: it reads samples as time steps of each "
                "other. Create it with batch_first=True, or transpose its input"
            )
    return ""

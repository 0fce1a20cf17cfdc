"""Recording a region as a CUDA graph and replaying it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..batch.signature import same_layout, shared_indices
from ..batch.tree import leaves_of, refill, static_copy, tensors_of
from ..device.error_text import error_summary, source_line
from ..device.gc_and_sync import is_wait, waits_are_errors
from ..errors import HostSync, NotCapturable
from .mailbox import Mailbox, open_mailbox

T = TypeVar("T")
# Torch still refers to these by address; they are kept so that the addresses are not reused.
_BROKEN: list[torch.cuda.CUDAGraph] = []


@dataclass
class Recording(Generic[T]):
    """A recorded region: its static inputs, what it returned, and the graph that replays it."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    result: T
    # The indices of inputs that are the same tensor, which must then hold for a batch as well.
    shared: tuple[int, ...]
    # Returns whether tensors have the layout of the batch that was recorded.
    fits: Callable[..., bool]
    # Set if the recording reads its inputs by address instead of having them copied.
    mailbox: Mailbox | None = None

    @property
    def run(self) -> Callable[[], None]:
        """The C++ replay of the graph, without torch's Python wrapper."""
        return super(torch.cuda.CUDAGraph, self.graph).replay

    @cached_property
    def _post(self) -> Callable[[Sequence[Tensor]], Tensor]:
        assert self.mailbox is not None
        return self.mailbox.poster(self.run)

    def replay(self, batch: Sequence[Tensor]) -> T:
        """Write the batch into the static inputs and run; the result is overwritten by the next replay."""
        if self.mailbox is not None:
            # The bytes at the address of a tensor with the negative bit are not its values.
            self._post([leaf.resolve_neg() for leaf in batch])
            return self.result
        refill(self.inputs, batch)
        self.graph.replay()
        return self.result


def record(
    region: Callable[..., T],
    batch: tuple[Any, ...],
    *,
    pool: Any = None,
    stream: torch.cuda.Stream | None = None,
    loss_of: Callable[[T], Tensor] | None = None,
) -> Recording[T]:
    """Record one run of `region(*batch)` without executing it.

    The region must have run before, so that lazy setup is done. If it cannot be recorded, the device stays
    usable and `NotCapturable` names the line that prevented it. With `loss_of`, the recording reads its
    batch and writes that loss by address, if Triton is available.
    """
    if any(isinstance(leaf, np.ndarray) for leaf in leaves_of(batch)):
        raise NotCapturable(
            "the batch holds a NumPy array, whose values a recording would repeat; "
            "pass a tensor on the device"
        )
    given = tensors_of(batch)
    if any(leaf.device.type == "cpu" for leaf in given):
        raise NotCapturable(
            "the batch holds a tensor on the CPU, whose values a recording would repeat; "
            "move it to the device"
        )
    static = static_copy(batch)
    inputs = tensors_of(static)
    # A copy is dense; read by address, a batch has its own strides.
    by_address = loss_of is not None and all(leaf.is_contiguous() and not leaf.is_neg() for leaf in given)
    mailbox = open_mailbox(inputs) if by_address else None
    graph = torch.cuda.CUDAGraph()
    stream, pool = stream or new_stream(), pool or torch.cuda.graph_pool_handle()
    usual = torch.cuda.current_stream()
    torch.cuda.synchronize()
    try:
        with (
            _no_collector(),
            _own_workspaces(),
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        ):
            if mailbox is not None:
                mailbox.receive()
            result = region(*static)
            if mailbox is not None and loss_of is not None:
                mailbox.give(loss_of(result))
    except Exception as error:
        _BROKEN.append(graph)
        _recover(usual, pool)
        raise NotCapturable(_reason(error)) from error
    return Recording(graph, inputs, result, shared_indices(inputs), same_layout(given), mailbox)


@contextmanager
def fresh_casts() -> Iterator[None]:
    """Clear the autocast cache around a recording.

    Every replay would read an older cast copy; a copy made while recording is invalid outside.
    """
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


@contextmanager
def _no_collector() -> Iterator[None]:
    """Disable garbage collection: destroying an old recording while recording breaks the new one."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Allocate the workspaces of matmuls from the pool of a recording, and release them when it ends.

    Torch keeps a workspace of 32 MB for each thread and stream that has run a matmul, in the pool from which
    it was allocated. The recordings of a trial would leave theirs behind, and so would eager steps.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


def rehearse(region: Callable[[], T]) -> T:
    """Run a region for real and raise at any host sync, which cannot be recorded.

    A recording that breaks in the middle costs more to recover from than a rehearsal that stops.
    """
    try:
        with waits_are_errors():
            return region()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise (HostSync if is_wait(error) else NotCapturable)(_reason(error)) from error


def _recover(usual: torch.cuda.Stream, pool: Any) -> None:
    """Leave the device usable after a broken recording.

    Torch leaves its stream as the current one and keeps allocating from its pool, which would keep all other
    memory from being freed. The random generator still believes that it is being captured; an empty recording
    that succeeds resets it, and keeps the state that earlier recordings draw from.
    """
    torch.cuda.set_stream(usual)
    with suppress(RuntimeError, AttributeError, TypeError):
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
    torch.cuda.synchronize()
    with (
        _no_collector(),
        torch.cuda.graph(torch.cuda.CUDAGraph(), stream=new_stream(), capture_error_mode="thread_local"),
    ):
        torch.zeros(1, device="cuda")
    torch.cuda.synchronize()


def _reason(error: Exception) -> str:
    """Return in one line what prevented a recording, with the lines that did it."""
    return f"{error_summary(error)}{source_line(error)}"


def new_stream(device: torch.device | None = None) -> torch.cuda.Stream:
    """Return a new stream to record on."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

"""Recording device work once and replaying it: the whole step as one launch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..batch.signature import same_layout, shared_indices
from ..batch.tree import leaves_of, refill, static_copy, tensors_of
from ..device.error_text import error_summary, source_line
from ..device.gc_and_sync import waits_are_errors
from ..errors import NotCapturable
from .mailbox import Mailbox, opened

T = TypeVar("T")
# Torch still knows where these were; they stay, so that nothing else comes to lie there.
_BROKEN: list[torch.cuda.CUDAGraph] = []


@dataclass
class Recording(Generic[T]):
    """A recorded region: its static inputs, what it returned, and the graph that replays it."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    result: T
    # Where one input stands in several places, which a batch must then do as well.
    shared: tuple[int, ...]
    # Says of tensors whether they have the form of the batch that was recorded.
    fits: Callable[..., bool]
    # Where the recording reads addresses instead of having its inputs filled.
    mailbox: Mailbox | None = None

    @property
    def run(self) -> Callable[[], None]:
        """What a graph's own `replay` calls, without the way there."""
        return super(torch.cuda.CUDAGraph, self.graph).replay

    def replay(self, batch: Sequence[Tensor]) -> T:
        """Write the batch into the static inputs and run; the result is overwritten by the next replay."""
        if self.mailbox is not None:
            # What lies at the address of a tensor with a negative bit is not what it says.
            self.mailbox.post(self.run, [leaf.resolve_neg() for leaf in batch])
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

    The region must have run before, so that lazy set-up is done. If it cannot be recorded, the
    device is left usable and `NotCapturable` names the line that prevented it. With `loss_of`, the
    recording reads its batch and writes that loss by addresses, where Triton is there to do it.
    """
    if any(isinstance(leaf, np.ndarray) for leaf in leaves_of(batch)):
        raise NotCapturable(
            "the batch holds a NumPy array, which a recording would keep as it is; "
            "give a tensor on the device"
        )
    given = tensors_of(batch)
    if any(leaf.device.type == "cpu" for leaf in given):
        raise NotCapturable(
            "the batch holds a tensor on the CPU, which a recording would keep as it is; "
            "give it on the device"
        )
    static = static_copy(batch)
    inputs = tensors_of(static)
    # A copy is dense; by its address a batch is read as it lies.
    by_address = loss_of is not None and all(leaf.is_contiguous() and not leaf.is_neg() for leaf in given)
    mailbox = opened(inputs) if by_address else None
    graph = torch.cuda.CUDAGraph()
    stream, pool = stream or new_stream(), pool or torch.cuda.graph_pool_handle()
    usual = torch.cuda.current_stream()
    torch.cuda.synchronize()
    try:
        with (
            _no_collector(),
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
    """Let an autocast around it cast weights anew in a recording, and keep none of what it cast there.

    A copy from before would be read by every replay as it was; one that was recorded means nothing outside.
    """
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


@contextmanager
def _no_collector() -> Iterator[None]:
    """Keep Python from collecting: an old recording that is destroyed within another one breaks it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def rehearse(region: Callable[[], T]) -> T:
    """Run a region for real and refuse any wait for the device, which no recording can hold.

    A recording that breaks in the middle costs more to recover from than a rehearsal that stops.
    """
    try:
        with waits_are_errors():
            return region()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise NotCapturable(_reason(error)) from error


def _recover(usual: torch.cuda.Stream, pool: Any) -> None:
    """Leave the device usable after a broken recording.

    Torch leaves its stream as the current one, and goes on taking memory from its pool, which would keep
    all other memory from being given back. The random generator still believes that it is being recorded;
    an empty recording that ends well sets it free, and keeps the state that earlier recordings draw from.
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
    """Say in one line what prevented a recording, with the user's source line."""
    told = error_summary(error)
    return f"{told}{source_line(error)}"


def new_stream(device: torch.device | None = None) -> torch.cuda.Stream:
    """Give a stream of its own to record on."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

"""The backend protocol, and the creation of the backend for a source and the user's options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from flodl.core import log
from flodl.core.errors import DataError
from flodl.core.formats import format_bytes
from flodl.core.rng_state import preserve_rng_state

from ..augment.augmentation import Augmentation
from ..batch import PositionedBatch
from ..sampling.epoch import Epoch
from ..sources import Batches, Samples, Source, Stream
from ..sources.source import GatherSource
from .placement import Placement, allowed_bytes, choose_mode, free_device_bytes
from .resident import Resident
from .streaming import Streaming


class Backend(Protocol):
    """Yields the batches of an epoch; the iterator may be closed early."""

    def batches(self, epoch: Epoch) -> Iterator[PositionedBatch]:
        """Yield the batches in order."""
        ...

    def close(self) -> None:
        """Release processes and memory."""
        ...


@dataclass(frozen=True)
class BackendOptions:
    """The arguments of a loader that select and configure its backend."""

    device: torch.device
    mode: str
    num_workers: int
    prefetch: int
    memory_cap: float | int

    def usable_bytes(self) -> int | None:
        """Return how many bytes the loader may use on the device now."""
        free = free_device_bytes(self.device)
        return None if free is None else allowed_bytes(free, self.memory_cap)


def create_backend(
    source: Source, augment: Augmentation | None, options: BackendOptions, *, obstacle: str
) -> tuple[Placement, Backend]:
    """Choose the mode and create its backend; fall back to streaming if the device runs out of memory."""
    gathered = source if isinstance(source, GatherSource) else None
    placement = choose_mode(
        options.mode,
        device=options.device,
        num_bytes=None if gathered is None else gathered.num_bytes,
        is_on_device=gathered is not None and not gathered.mapped and gathered.device == options.device,
        free_bytes=free_device_bytes(options.device),
        memory_cap=options.memory_cap,
        obstacle="" if gathered is not None else _why_streaming(source, obstacle),
    )
    if placement.mode == "resident":
        if options.num_workers:
            placement = _without_workers(placement, options)
        try:
            placement, resident = _to_device(source, placement, options.device)
            return placement, Resident(resident, augment, is_copy=resident is not source)
        except torch.OutOfMemoryError as error:
            first_line = str(error).splitlines()[0].rstrip(".") if str(error) else "out of memory"
            placement = Placement("streaming", f"the data did not fit on {options.device} ({first_line})")
            log.warn("Loader: streaming instead of resident: %s.", placement.reason)
    streaming = Streaming(
        source,
        augment,
        device=options.device,
        num_workers=options.num_workers,
        prefetch=options.prefetch,
        usable_bytes=options.usable_bytes,
    )
    return placement, streaming


def _without_workers(placement: Placement, options: BackendOptions) -> Placement:
    """Add to the reason that workers are not needed; raise if resident data was requested explicitly."""
    if options.mode == "resident":
        raise DataError(
            f"num_workers={options.num_workers} with mode='resident', which has nothing for workers to do. "
            "Omit one of them."
        )
    return replace(placement, reason=f"{placement.reason}, so num_workers={options.num_workers} is not used")


def _to_device(source: Source, placement: Placement, device: torch.device) -> tuple[Placement, GatherSource]:
    """Copy the whole source to the device, unless it is there already."""
    if isinstance(source, Stream):
        raise DataError("mode='resident' needs a source with a length, but this one is an iterable.")
    if isinstance(source, Batches):
        raise DataError(f"mode='resident' cannot be used here: {source.maker.reason}.")
    if isinstance(source, Samples):
        with preserve_rng_state():
            source = source.read_all()
        size = format_bytes(source.num_bytes)
        placement = Placement("resident", f"{placement.reason}; each sample was created once ({size})")
    if source.mapped or source.device != device:
        source = source.to(device)
    return placement, source


def _why_streaming(source: Source, obstacle: str) -> str:
    """Return why a source cannot be copied to the device as a whole."""
    if isinstance(source, Stream):
        order = "" if source.buffer else ", in its own order (shuffle_buffer= shuffles it)"
        return f"an iterable is read sequentially{order}"
    if isinstance(source, Batches):
        return source.maker.reason
    assert isinstance(source, Samples)
    if obstacle:
        return f"{obstacle}, so samples are created one by one"
    if source.transform is not None:
        return "transform= is called for each sample on the host; augment= works on batches on the device"
    return f"{source.label} creates its samples one by one; mode='resident' would read them all once"

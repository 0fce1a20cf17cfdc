"""From a source and the wishes of the user to the backend that gives the batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from flodl.core import log
from flodl.core.errors import DataError
from flodl.core.formats import format_bytes
from flodl.core.rng_state import preserve_rng_state

from ..augment.augmentation import Augmentation
from ..batch import Handed
from ..sampling.epoch import Epoch
from ..sampling.samplers import Sampler
from ..sources import Samples, Source, Stream
from ..sources.source import Gathered
from .placement import Placement, allowed_bytes, choose, measure_free
from .resident import Resident
from .streaming import Streaming


class Backend(Protocol):
    """Gives the batches of an epoch; closing the iterator early is allowed."""

    def batches(self, epoch: Epoch) -> Iterator[Handed]:
        """Give the batches in order."""
        ...

    def close(self) -> None:
        """Let go of processes and memory."""
        ...


@dataclass(frozen=True)
class Wishes:
    """What the user asked for, as far as it decides where the data live."""

    device: torch.device
    mode: str
    num_workers: int
    prefetch: int
    memory_cap: float | int

    def room(self) -> int | None:
        """Give the bytes that the loader may use on the device now."""
        free = measure_free(self.device)
        return None if free is None else allowed_bytes(free, self.memory_cap)


def place(
    source: Source, sampler: Sampler, augment: Augmentation | None, wishes: Wishes, *, obstacle: str
) -> tuple[Placement, Backend]:
    """Choose the mode and set it up; data that do not fit after all are streamed."""
    gathered = source if isinstance(source, Gathered) else None
    placement = choose(
        wishes.mode,
        device=wishes.device,
        num_bytes=None if gathered is None else gathered.num_bytes,
        lies_there=gathered is not None and not gathered.mapped and gathered.device == wishes.device,
        free_bytes=measure_free(wishes.device),
        memory_cap=wishes.memory_cap,
        obstacle="" if gathered is not None else _why_not_whole(source, obstacle),
    )
    if placement.mode == "resident":
        try:
            placement, settled = _settled(source, placement, wishes.device)
            return placement, Resident(settled, sampler, augment, is_copy=settled is not source)
        except torch.OutOfMemoryError as error:
            first_line = str(error).splitlines()[0].rstrip(".") if str(error) else "out of memory"
            placement = Placement("streaming", f"the data did not fit on {wishes.device} ({first_line})")
            log.warn("Loader: streaming instead of resident, for %s.", placement.reason)
    streaming = Streaming(
        source,
        sampler,
        augment,
        device=wishes.device,
        num_workers=wishes.num_workers,
        prefetch=wishes.prefetch,
        room=wishes.room,
    )
    return placement, streaming


def _settled(source: Source, placement: Placement, device: torch.device) -> tuple[Placement, Gathered]:
    """Bring the whole source to the device."""
    if isinstance(source, Stream):
        raise DataError("mode='resident' needs a source with a length; this one is an iterable.")
    if isinstance(source, Samples):
        with preserve_rng_state():
            source = source.read_all()
        size = format_bytes(source.num_bytes)
        placement = Placement("resident", f"{placement.reason}; each sample was made once ({size})")
    if source.mapped or source.device != device:
        source = source.to(device)
    return placement, source


def _why_not_whole(source: Source, obstacle: str) -> str:
    """Say why a source is not a block of tensors that could lie on the device."""
    if isinstance(source, Stream):
        kept = "" if source.buffer else ", in its own order (shuffle_buffer= shuffles it)"
        return f"an iterable is read as it comes{kept}"
    assert isinstance(source, Samples)
    if obstacle:
        return f"{obstacle}, so samples are made one by one"
    if source.transform is not None:
        return "transform= is called for each sample on the host; augment= works on batches on the device"
    return f"{source.label} makes its samples one by one; mode='resident' would read them all once"

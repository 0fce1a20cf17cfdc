"""How a recording receives its batch and returns its loss without any launch besides the replay.

Copying a batch into static inputs and copying the loss cost the host two or three launches, about as much as
the replay itself. Here the host writes a few addresses into pinned memory; kernels inside the recording
follow them.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from flodl.core import log

from .loss_slots import LossSlots

SLOTS = 256
# Steps per lap. Even if the host is two laps ahead, no slot is overwritten before it was read.
PACE = 64
# The words that a block copies at a time, and the maximum number of blocks.
_BLOCK, _MOST_BLOCKS = 1024, 1024
# The threads of a warp.
_LANES = 32
# Each turn has its own cache lines: 64 bytes, or a multiple.
_LINE = 8
_ALIGNED = 16
ADDRESS = Tensor.data_ptr
_NONE = (torch.empty(0, device="cpu"), 0)
# Tables of deleted mailboxes. Queued replays may still read them, which torch does not know, so they are kept
# until the next synchronization.
LEFT_TABLES: dict[torch.device, list[Tensor]] = {}


class Mailbox:
    """The addresses of a batch and of a slot for its loss, handed over once per turn."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        words = [tensor.reshape(-1).view(torch.int32) for tensor in inputs]
        device = inputs[0].device
        stride = -(-(len(inputs) + 1) // _LINE) * _LINE
        self.table = torch.zeros(SLOTS, stride, dtype=torch.int64, device="cpu", pin_memory=True)
        self._numbers = self.table.numpy()
        # The free slots of this lap, the next one last, each with the offset for its addresses. The first
        # entry is never used: if it is missing, a turn was interrupted.
        self.free: list[tuple[Tensor, int]] = [_NONE]
        self.memory = memoryview(self._numbers).cast("B")  # type: ignore[arg-type]
        self.write = struct.Struct(f"{len(inputs)}q").pack_into
        self._inputs = words
        self._plan = torch.tensor([(part.data_ptr(), part.numel()) for part in words], device=device)
        self._blocks = min(_MOST_BLOCKS, -(-max(map(len, words)) // _BLOCK))
        # The addresses of this turn, fetched from the table.
        lanes = max(_LANES, 1 << len(inputs).bit_length())
        self._addresses = torch.zeros(lanes, dtype=torch.int64, device=device)
        self._turn = torch.zeros((), dtype=torch.int64, device=device)
        # The turn that the next lap starts with, unless one was interrupted.
        self._turns = 0
        self._reached = [torch.cuda.Event(), torch.cuda.Event()]  # type: ignore[no-untyped-call]
        self._laps: dict[int, LossSlots] = {}
        self._device = device
        weakref.finalize(self, LEFT_TABLES.setdefault(device, []).append, self.table).atexit = False

    def receive(self) -> None:
        """Fill the inputs from the addresses of this turn; part of the recording."""
        from .kernels import deliver, fetch

        table, width = self.table, len(self._inputs) + 1
        where = table.data_ptr(), self._turn, self._addresses, SLOTS, table.stride(0)
        fetch[(1,)](*where, WIDTH=width, LANES=len(self._addresses), num_warps=1)
        deliver[(self._blocks,)](self._addresses, self._plan, INPUTS=len(self._inputs), SIZE=_BLOCK)

    def give(self, loss: Tensor) -> None:
        """Write the loss to the address of this turn and end the turn; part of the recording."""
        from .kernels import give

        if loss.data_ptr() % _ALIGNED:
            # For another alignment Triton would load a new kernel while recording.
            loss = loss.clone()
        give[(1,)](self._addresses, self._turn, loss, len(self._inputs), num_warps=1)

    def rehearse(self, batch: Sequence[Tensor]) -> None:
        """Run the kernels once outside a recording, so that they are compiled and loaded."""

        def take_a_turn() -> None:
            self.receive()
            self.give(torch.zeros((), dtype=torch.float32, device=self._device))

        self.post(take_a_turn, batch)

    def post(self, replay: Callable[[], object], batch: Sequence[Tensor]) -> Tensor:
        """Replay a graph for a batch, and return its loss in a tensor that no later replay writes to."""
        return self.poster(replay)(batch)

    def poster(self, replay: Callable[[], object]) -> Callable[[Sequence[Tensor]], Tensor]:
        """Return a function that does what `post` does, with everything looked up once."""
        free, write, memory, begin_lap = self.free, self.write, self.memory, self.begin_lap
        is_pair = len(self._inputs) == 2

        def post(batch: Sequence[Tensor]) -> Tensor:
            try:
                if len(free) < 2:
                    begin_lap()
                loss, start = free.pop()
                if is_pair:
                    # Most batches are pairs; this takes half the time.
                    write(memory, start, batch[0].data_ptr(), batch[1].data_ptr())
                else:
                    write(memory, start, *map(ADDRESS, batch))
                replay()
            except BaseException:
                # The device knows whether the turn was taken. One call: another interrupt may follow.
                free.clear()
                raise
            return loss

        return post

    def begin_lap(self) -> None:
        """Find free slots for the next losses; wait if the device is far behind."""
        turn = self._turns
        if not self.free:
            torch.cuda.synchronize(self._device)
            turn = int(self._turn)
        else:
            lap = turn // PACE
            event = self._reached[lap % 2]
            if lap >= 2:
                event.synchronize()
            event.record(torch.cuda.current_stream(self._device))
        begun = turn % PACE
        slots = self._lap_slots((turn - begun) % SLOTS)
        self._turns = turn - begun + PACE
        self.free[:] = (_NONE, *reversed(slots.entries[begun:]))

    def _lap_slots(self, first: int) -> LossSlots:
        """Return the slots of the lap that starts at this index; nobody else holds one of them."""
        slots = self._laps.get(first)
        if slots is None:
            width = self.table.stride(0) * self.table.itemsize
            starts = range(first * width, (first + PACE) * width, width)
            slots = self._laps[first] = LossSlots(starts, self._device)
        elif not slots.renew():
            return slots
        self._numbers[first : first + PACE, len(self._inputs)] = slots.addresses
        return slots


def open_mailbox(inputs: Sequence[Tensor]) -> Mailbox | None:
    """Return a mailbox that is ready to use; None if the inputs cannot be read by address."""
    # A complex tensor may be conjugated lazily: the bytes at its address are not its values.
    plain = all(
        leaf.is_cuda
        and leaf.is_contiguous()
        and leaf.numel() > 0
        and leaf.itemsize in (4, 8)
        and not leaf.is_complex()
        for leaf in inputs
    )
    if not inputs or not plain:
        return None
    device = inputs[0].device
    try:
        mailbox = Mailbox(inputs)
        mailbox.rehearse(inputs)
        num_left = len(LEFT_TABLES[device])
        torch.cuda.synchronize(device)
        del LEFT_TABLES[device][:num_left]
    except Exception as error:
        log.debug("inputs are copied one by one: %s: %s", type(error).__name__, error)
        return None
    return mailbox

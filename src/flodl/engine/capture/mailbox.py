"""How a recording gets its batch and gives its loss without the host launching anything but the replay.

A copy into static inputs and a copy of the loss cost the host two or three launches, about as much as the
replay itself. Here the host writes a few addresses into memory that the device can see; kernels inside the
recording follow them.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from flodl.core import log

from .loss_slots import Places

SLOTS = 256
# The host may be this many turns ahead at most twice over, and still no slot is written before it was read.
PACE = 64
# The words that a block copies at a time, and the most blocks.
_BLOCK, _MOST_BLOCKS = 1024, 1024
# The threads of a warp.
_LANES = 32
# Each turn has memory to itself that neither side reads or writes in part: 64 bytes, or several times that.
_LINE = 8
_ALIGNED = 16
ADDRESS = Tensor.data_ptr
_NONE = (torch.empty(0, device="cpu"), 0)
# Tables of mailboxes that are gone. Replays may still be queued that read them, which torch does not know:
# they stay until the device was waited for.
_LEFT: dict[torch.device, list[Tensor]] = {}


class Mailbox:
    """Addresses of a batch and of a place for the loss, handed over turn by turn."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        words = [tensor.reshape(-1).view(torch.int32) for tensor in inputs]
        device = inputs[0].device
        stride = -(-(len(inputs) + 1) // _LINE) * _LINE
        self._table = torch.zeros(SLOTS, stride, dtype=torch.int64, device="cpu", pin_memory=True)
        self._numbers = self._table.numpy()
        # What a post needs. The free places of this lap, the next one last, each with where addresses go.
        # Below them lies one that is never given: without it, a turn was broken off.
        self.free: list[tuple[Tensor, int]] = [_NONE]
        self.memory = memoryview(self._numbers).cast("B")  # type: ignore[arg-type]
        self.write = struct.Struct(f"{len(inputs)}q").pack_into
        self._inputs = words
        self._plan = torch.tensor([(part.data_ptr(), part.numel()) for part in words], device=device)
        self._blocks = min(_MOST_BLOCKS, -(-max(map(len, words)) // _BLOCK))
        # What the device has fetched of the table, for this turn.
        lanes = max(_LANES, 1 << len(inputs).bit_length())
        self._addresses = torch.zeros(lanes, dtype=torch.int64, device=device)
        self._turn = torch.zeros((), dtype=torch.int64, device=device)
        # The turn that the next lap begins with, unless one was broken off.
        self._turns = 0
        self._reached = [torch.cuda.Event(), torch.cuda.Event()]  # type: ignore[no-untyped-call]
        self._laps: dict[int, Places] = {}
        self._device = device
        weakref.finalize(self, _LEFT.setdefault(device, []).append, self._table).atexit = False

    def receive(self) -> None:
        """Fill the inputs from the addresses of this turn; part of the recording."""
        from .kernels import deliver, fetch

        table, width = self._table, len(self._inputs) + 1
        where = table.data_ptr(), self._turn, self._addresses, SLOTS, table.stride(0)
        fetch[(1,)](*where, WIDTH=width, LANES=len(self._addresses), num_warps=1)
        deliver[(self._blocks,)](self._addresses, self._plan, INPUTS=len(self._inputs), SIZE=_BLOCK)

    def give(self, loss: Tensor) -> None:
        """Write the loss to the address of this turn, which ends with it; part of the recording."""
        from .kernels import give

        if loss.data_ptr() % _ALIGNED:
            # One of several numbers. For another alignment Triton would load another kernel, while recording.
            loss = loss.clone()
        give[(1,)](self._addresses, self._turn, loss, len(self._inputs), num_warps=1)

    def rehearse(self, batch: Sequence[Tensor]) -> None:
        """Run the kernels once outside a recording, so that they are compiled and loaded."""

        def take_a_turn() -> None:
            self.receive()
            self.give(torch.zeros((), dtype=torch.float32, device=self._device))

        self.post(take_a_turn, batch)

    def post(self, replay: Callable[[], object], batch: Sequence[Tensor]) -> Tensor:
        """Replay a graph for a batch, and give its loss in a tensor that no later replay touches."""
        try:
            if len(self.free) < 2:
                self.begin_lap()
            loss, start = self.free.pop()
            self.write(self.memory, start, *map(ADDRESS, batch))
            replay()
        except BaseException:
            # Whether the turn was taken, the device will say. In one call: another interrupt may follow.
            self.free.clear()
            raise
        return loss

    def begin_lap(self) -> None:
        """Find free places for the next losses; wait where the device is far behind."""
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
        places = self._renewed((turn - begun) % SLOTS)
        self._turns = turn - begun + PACE
        self.free[:] = (_NONE, *reversed(places.entries[begun:]))

    def _renewed(self, first: int) -> Places:
        """Give the places of the lap whose slots begin there; none of them is held by anybody else."""
        places = self._laps.get(first)
        if places is None:
            width = self._table.stride(0) * self._table.itemsize
            starts = range(first * width, (first + PACE) * width, width)
            places = self._laps[first] = Places(starts, self._device)
        elif not places.renew():
            return places
        self._numbers[first : first + PACE, len(self._inputs)] = places.addresses
        return places


def opened(inputs: Sequence[Tensor]) -> Mailbox | None:
    """Give a mailbox that is ready to use; None where addresses cannot stand for the inputs."""
    # The bytes at an address are not the values of a complex tensor that is conjugated when it is read.
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
        left = len(_LEFT[device])
        torch.cuda.synchronize(device)
        del _LEFT[device][:left]
    except Exception as error:
        log.debug("inputs are copied one by one: %s: %s", type(error).__name__, error)
        return None
    return mailbox

"""How a recording gets its batch and gives its loss without the host launching anything but the replay.

A copy into static inputs and a copy of the loss cost the host two or three launches, about as much as the
replay itself. Here the host writes a few addresses into memory that the device can see; kernels inside the
recording follow them.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from flodl.core import log

SLOTS = 256
# The host may be this many turns ahead at most twice over, and still no slot is written before it was read.
PACE = 64
# The words that a block copies at a time, and the most blocks: each reads the host's memory for itself.
_BLOCK, _MOST_BLOCKS = 1024, 256
# Each turn has memory to itself that neither side reads or writes in part: 64 bytes, or several times that.
_LINE = 8
_ALIGNED = 16
_ADDRESS = Tensor.data_ptr
# Tables of mailboxes that are gone. Replays may still be queued that read them, which torch does not know:
# they stay until the device was waited for.
_LEFT: dict[torch.device, list[Tensor]] = {}


class Mailbox:
    """Addresses of a batch and of a place for the loss, handed over turn by turn."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        words = [tensor.reshape(-1).view(torch.int32) for tensor in inputs]
        width = len(inputs) + 1
        device = inputs[0].device
        stride = -(-width // _LINE) * _LINE
        self._table = torch.zeros(SLOTS, stride, dtype=torch.int64, device="cpu", pin_memory=True)
        self._memory = memoryview(self._table.numpy()).cast("B")  # type: ignore[arg-type]
        self._write, self._width = struct.Struct(f"={width}q").pack_into, 8 * stride
        self._inputs = words
        self._plan = torch.tensor([(part.data_ptr(), part.numel()) for part in words], device=device)
        self._blocks = min(_MOST_BLOCKS, -(-max(map(len, words)) // _BLOCK))
        self._turn = torch.zeros((), dtype=torch.int64, device=device)
        self._turns = 0
        self._lost = False
        self._reached = [torch.cuda.Event(), torch.cuda.Event()]  # type: ignore[no-untyped-call]
        self._places: list[tuple[Tensor, int]] = []
        # Of this lap and the one before: replays on another stream may still write there.
        self._laps: list[Tensor] = []
        self._device = device
        weakref.finalize(self, _LEFT.setdefault(device, []).append, self._table).atexit = False

    def receive(self) -> None:
        """Fill the inputs from the addresses of this turn; part of the recording."""
        from .kernels import deliver

        table, count = self._table, len(self._inputs)
        where = table.data_ptr(), self._turn, self._plan, SLOTS, table.stride(0)
        deliver[(self._blocks,)](*where, INPUTS=count, SIZE=_BLOCK)

    def give(self, loss: Tensor) -> None:
        """Write the loss to the address of this turn, which ends with it; part of the recording."""
        from .kernels import give

        if loss.data_ptr() % _ALIGNED:
            # One of several numbers. For another alignment Triton would load another kernel, while recording.
            loss = loss.clone()
        table = self._table
        give[(1,)](table.data_ptr(), self._turn, loss, len(self._inputs), SLOTS, table.stride(0), num_warps=1)

    def rehearse(self, batch: Sequence[Tensor]) -> None:
        """Run the kernels once outside a recording, so that they are compiled and loaded."""
        self._send(batch)
        self.receive()
        self.give(torch.zeros((), dtype=torch.float32, device=self._device))

    def post(self, graph: torch.cuda.CUDAGraph, batch: Sequence[Tensor]) -> Tensor:
        """Replay a graph for a batch, and give its loss in a tensor that no later replay touches."""
        if self._lost:
            self._find_turn()
        # An interrupt may come on either side of the replay.
        self._lost = True
        # What `_send` does, written out: it is part of every step.
        turn = self._turns
        place = turn % PACE
        if place == 0:
            self._keep_pace(turn // PACE)
        loss, address = self._places[place]
        start = (turn % SLOTS) * self._width
        if len(batch) == 2:
            # What most batches are, in half the time.
            self._write(self._memory, start, batch[0].data_ptr(), batch[1].data_ptr(), address)
        else:
            self._write(self._memory, start, *map(_ADDRESS, batch), address)
        self._turns = turn + 1
        graph.replay()
        self._lost = False
        return loss

    def _find_turn(self) -> None:
        """Ask the device how many turns it took, after one that was broken off."""
        torch.cuda.synchronize(self._device)
        self._turns = int(self._turn)
        self._make_places()
        self._lost = False

    def _send(self, batch: Sequence[Tensor]) -> Tensor:
        """Write down the addresses for the next replay, and give the tensor that will hold its loss."""
        turn = self._turns
        place = turn % PACE
        if place == 0:
            self._keep_pace(turn // PACE)
        loss, address = self._places[place]
        self._write(self._memory, (turn % SLOTS) * self._width, *map(_ADDRESS, batch), address)
        self._turns = turn + 1
        return loss

    def _keep_pace(self, lap: int) -> None:
        """Wait where the device is far behind, and make places for the next losses; they are never reused."""
        event = self._reached[lap % 2]
        if lap >= 2:
            event.synchronize()
        event.record(torch.cuda.current_stream(self._device))
        self._make_places()

    def _make_places(self) -> None:
        places = torch.empty(PACE, dtype=torch.float32, device=self._device)
        self._laps = [*self._laps[-1:], places]
        start = places.data_ptr()
        self._places = [*zip(places.unbind(), range(start, start + places.nbytes, places.itemsize))]


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

"""Collective operations between the members of one reduction."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    ReduceOp,
    Store,
)


class Link(Protocol):
    """Operations that return once they are complete, or raise an error at the deadline.

    A deadline is a value of `time.monotonic()`. Tensors are contiguous and on the device of the state, or on
    the CPU unless the link needs the device.
    """

    index: int
    size: int
    needs_device: bool

    def sum_(self, tensor: Tensor, deadline: float) -> int:
        """Replace a tensor by its sum over the members; return the bytes that this member sends."""

    def max_(self, tensor: Tensor, deadline: float) -> int:
        """Replace a tensor by its maximum over the members."""

    def broadcast_(self, tensor: Tensor, source: int, deadline: float) -> int:
        """Replace a tensor by that of the member with the index `source`."""

    def exchange(self, out: Tensor, tensor: Tensor, deadline: float) -> int:
        """Send the k-th part of a tensor to the k-th member, and receive its part for this one."""

    def gather(self, out: Tensor, tensor: Tensor, deadline: float) -> int:
        """Collect the tensors of all members in one."""

    def close(self) -> None:
        """Close connections. A blocked operation of another thread ends as far as the backend can."""


def remaining(deadline: float) -> timedelta:
    # gloo does not accept a timeout of 0.
    return timedelta(seconds=max(deadline - time.monotonic(), 0.001))


class AllReduceLink(ABC):
    """Sums and maxima, from one operation of the backend."""

    def sum_(self, tensor: Tensor, deadline: float) -> int:
        return self._all_reduce(tensor, ReduceOp.SUM, deadline)

    def max_(self, tensor: Tensor, deadline: float) -> int:
        return self._all_reduce(tensor, ReduceOp.MAX, deadline)

    @abstractmethod
    def _all_reduce(self, tensor: Tensor, op: Any, deadline: float) -> int: ...


class GlooLink(AllReduceLink):
    """Tensors on the CPU, over TCP."""

    needs_device = False

    def __init__(self, store: Store, prefix: str, index: int, size: int, device: object, deadline: float):
        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        options._devices = [device]
        options._timeout = remaining(deadline)
        self.index, self.size = index, size
        self._group: Any = gloo(PrefixStore(prefix, store), index, size, options)

    def _finish(self, start: Callable[[Any], Any]) -> None:
        """Start an operation, and wait for it."""
        # The reference keeps the group alive if another thread closes it: its destructor would block there.
        group = self._group
        if group is None:
            raise RuntimeError("the process group is closed")
        start(group).wait()

    def _all_reduce(self, tensor: Tensor, op: Any, deadline: float) -> int:
        options = AllreduceOptions()
        options.reduceOp = op
        options.timeout = remaining(deadline)
        self._finish(lambda group: group.allreduce([tensor], options))
        # A ring: each part is sent once while it is summed, and once when it is complete.
        return 2 * tensor.nbytes * (self.size - 1) // self.size

    def broadcast_(self, tensor: Tensor, source: int, deadline: float) -> int:
        options = BroadcastOptions()
        options.rootRank = source
        options.timeout = remaining(deadline)
        self._finish(lambda group: group.broadcast([tensor], options))
        # A tree: the whole tensor is sent size − 1 times; the source counts all of it.
        return tensor.nbytes * (self.size - 1) if source == self.index else 0

    def exchange(self, out: Tensor, tensor: Tensor, deadline: float) -> int:
        options = AllToAllOptions()
        options.timeout = remaining(deadline)
        self._finish(lambda group: group.alltoall_base(_bytes(out), _bytes(tensor), [], [], options))
        return tensor.nbytes * (self.size - 1) // self.size

    def gather(self, out: Tensor, tensor: Tensor, deadline: float) -> int:
        options = AllgatherOptions()
        options.timeout = remaining(deadline)
        self._finish(lambda group: group._allgather_base(_bytes(out), _bytes(tensor), options))
        return tensor.nbytes * (self.size - 1)

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.abort()


class HostLink:
    """Tensors on another device, over gloo: each operation works on a copy in the memory of the host."""

    needs_device = False

    def __init__(self, link: GlooLink) -> None:
        self.index, self.size = link.index, link.size
        self._link = link

    def sum_(self, tensor: Tensor, deadline: float) -> int:
        host = _to_host(tensor)
        num_bytes = self._link.sum_(host, deadline)
        tensor.copy_(host)
        return num_bytes

    def max_(self, tensor: Tensor, deadline: float) -> int:
        host = _to_host(tensor)
        num_bytes = self._link.max_(host, deadline)
        tensor.copy_(host)
        return num_bytes

    def broadcast_(self, tensor: Tensor, source: int, deadline: float) -> int:
        host = _to_host(tensor) if source == self.index else _host_like(tensor)
        num_bytes = self._link.broadcast_(host, source, deadline)
        if source != self.index:
            tensor.copy_(host)
        return num_bytes

    def exchange(self, out: Tensor, tensor: Tensor, deadline: float) -> int:
        host = _host_like(out)
        num_bytes = self._link.exchange(host, _to_host(tensor), deadline)
        out.copy_(host)
        return num_bytes

    def gather(self, out: Tensor, tensor: Tensor, deadline: float) -> int:
        host = _host_like(out)
        num_bytes = self._link.gather(host, _to_host(tensor), deadline)
        out.copy_(host)
        return num_bytes

    def close(self) -> None:
        self._link.close()


class NcclLink(AllReduceLink):
    """Tensors on CUDA devices, one per member.

    Its own watchdog would end the process at a timeout. So operations are watched here, and the group is
    aborted at the deadline.
    """

    needs_device = True

    def __init__(self, store: Store, prefix: str, index: int, size: int, device: torch.device) -> None:
        from torch._C._distributed_c10d import ProcessGroupNCCL

        nccl: Any = ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = timedelta(days=1)
        self.index, self.size = index, size
        self._device = device
        with torch.cuda.device(device):
            self._group: Any = nccl(PrefixStore(prefix, store), index, size, options)
            self._group.eager_connect_single_device(device)

    def _all_reduce(self, tensor: Tensor, op: Any, deadline: float) -> int:
        options = AllreduceOptions()
        options.reduceOp = op
        self._finish(self._open().allreduce([tensor], options), deadline)
        return 2 * tensor.nbytes * (self.size - 1) // self.size

    def broadcast_(self, tensor: Tensor, source: int, deadline: float) -> int:
        options = BroadcastOptions()
        options.rootRank = source
        self._finish(self._open().broadcast([tensor], options), deadline)
        return tensor.nbytes * (self.size - 1) if source == self.index else 0

    def exchange(self, out: Tensor, tensor: Tensor, deadline: float) -> int:
        self._finish(self._open().alltoall_base(_bytes(out), _bytes(tensor), [], []), deadline)
        return tensor.nbytes * (self.size - 1) // self.size

    def gather(self, out: Tensor, tensor: Tensor, deadline: float) -> int:
        self._finish(self._open()._allgather_base(_bytes(out), _bytes(tensor)), deadline)
        return tensor.nbytes * (self.size - 1)

    def _open(self) -> Any:
        if self._group is None:
            raise RuntimeError("the process group is closed")
        return self._group

    def _finish(self, work: Any, deadline: float) -> None:
        """Wait until the device has completed an operation."""
        while not work.is_completed():
            if time.monotonic() > deadline:
                self.close()
                raise RuntimeError("NCCL did not complete the operation in time")
            time.sleep(0.0002)
        work.wait()
        torch.cuda.current_stream(self._device).synchronize()

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.abort()


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8)


def _host_like(tensor: Tensor) -> Tensor:
    # Torch keeps pinned memory for reuse, so that allocating it again is cheap.
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)


def _to_host(tensor: Tensor) -> Tensor:
    return _host_like(tensor).copy_(tensor)

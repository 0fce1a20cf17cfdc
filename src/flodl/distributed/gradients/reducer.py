"""`GradientReducer`: the weighted mean of gradients over a process group, in one all-reduce."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from flodl.core import DistributedError

from .flat import FlatTensors

# The shape and dtype of each tensor.
Layout = list[tuple[tuple[int, ...], torch.dtype]]


class GradientReducer:
    """Averages gradients over the ranks of a process group in place, weighted by samples.

    The gradients of all ranks are summed as one vector [w·g | w] and divided by the sum of the weights, so
    the result is bit-identical on all ranks. It works on memory of its own: if the all-reduce fails, the
    gradients are unchanged. In a group of one rank it does nothing.

    `through_host` copies the vector to the host and back: needed for gradients on CUDA in a group that cannot
    use CUDA, as when several ranks share a device. By default, this is decided from the backend of the group.

    >>> import tempfile
    >>> store = dist.FileStore(tempfile.mkstemp()[1], 1)
    >>> reducer = GradientReducer(dist.ProcessGroupGloo(store, 0, 1))
    >>> gradient = torch.tensor([0.5])
    >>> reducer([gradient], 8), gradient
    (None, tensor([0.5000]))
    """

    def __init__(self, group: Any, *, through_host: bool | None = None) -> None:
        self._group = group
        self._size: int = group.size()
        self._through_host = through_host
        self._layout: Layout = []
        self._flat: FlatTensors | None = None
        # A pinned copy of the vector, if it goes through the host.
        self._on_host: Tensor | None = None

    def __getstate__(self) -> NoReturn:
        raise DistributedError(
            "a GradientReducer belongs to the process group of its process and cannot be copied or pickled. "
            "Create one in each rank."
        )

    @torch.no_grad()
    def __call__(self, gradients: Sequence[Tensor], weight: float) -> None:
        """Average the gradients; all ranks of the group call this with the same shapes in the same order.

        A rank with weight 0 contributes nothing, whatever its gradients are. If all weights are 0, the
        gradients become zero.
        """
        if self._size == 1:
            return
        flat = self._prepared(gradients)
        flat.read(gradients)
        if weight == 0:
            flat.vector.zero_()
        else:
            flat.vector.mul_(weight)
        total = flat.vector[-1]
        total.fill_(weight)
        self._sum(flat.vector)
        flat.vector.div_(torch.where(total == 0, 1.0, total))
        flat.write(gradients)

    def _prepared(self, gradients: Sequence[Tensor]) -> FlatTensors:
        """Return the memory for these gradients; check a new layout against the other ranks."""
        layout = [(tuple(gradient.shape), gradient.dtype) for gradient in gradients]
        if self._flat is None or layout != self._layout:
            # One more element, for the weight.
            self._flat, self._layout, self._on_host = FlatTensors(gradients, extra=1), layout, None
            self._check_layout(layout, self._flat.vector.device)
        return self._flat

    def _check_layout(self, layout: Layout, device: torch.device) -> None:
        """Raise on all ranks if their layouts differ."""
        digest = int.from_bytes(hashlib.sha256(repr(layout).encode()).digest()[:7])
        # Equal on all ranks if the largest is also the smallest.
        both = torch.tensor([digest, -digest], device=device)
        self._sum(both, dist.ReduceOp.MAX)
        largest, negative_smallest = both.tolist()
        if largest != -negative_smallest:
            num_elements = sum(torch.Size(shape).numel() for shape, _ in layout)
            self._flat = None
            raise DistributedError(
                f"the gradients of the ranks differ in shape; this rank has {len(layout)} tensors with "
                f"{num_elements} elements. Build the same model and optimizer on all ranks, and freeze "
                "the same parameters in the same update."
            )

    def _sum(self, vector: Tensor, operation: Any = dist.ReduceOp.SUM) -> None:
        """Sum a vector over ranks in place."""
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        try:
            if not self._goes_through_host(vector.device):
                self._group.allreduce([vector], options).wait()
                return
            on_host = self._host_copy(vector)
            self._group.allreduce([on_host], options).wait()
            vector.copy_(on_host)
        except RuntimeError as error:
            raise DistributedError(
                f"the gradients could not be averaged over the {self._size} ranks: {error}. A rank has "
                "probably ended or waited for too long; the first error of the other ranks says why."
            ) from error

    def _host_copy(self, vector: Tensor) -> Tensor:
        if self._on_host is None or self._on_host.dtype != vector.dtype or len(self._on_host) != len(vector):
            self._on_host = torch.empty_like(vector, device="cpu", pin_memory=True)
        # Waits for the copy.
        return self._on_host.copy_(vector)

    def _goes_through_host(self, device: torch.device) -> bool:
        if device.type == "cpu":
            return False
        if self._through_host is None:
            self._through_host = _backend_name(self._group, device) == "gloo"
        return self._through_host


def _backend_name(group: Any, device: torch.device) -> str:
    """Return the name of the backend that a group uses for a device; a backend itself is its own."""
    if isinstance(group, dist.ProcessGroup):
        try:
            group = group._get_backend(device)
        except RuntimeError:  # it has none for this device
            return "gloo"
    return str(group.name())

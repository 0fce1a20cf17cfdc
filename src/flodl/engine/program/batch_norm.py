"""The running statistics of batch norm: what a forward moves, noted, and put back where it must not count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
# So many selections cost no more than laying the buffers side by side.
_FEW = 3


class RunningStatistics:
    """The buffers of a model's norms as they were when a window opened.

    >>> norm = nn.BatchNorm1d(1)
    >>> statistics = RunningStatistics([norm])
    >>> statistics.note()
    >>> _ = norm(torch.tensor([[1.0], [torch.nan]]))
    >>> statistics.put_back_where(torch.tensor(1.0))
    >>> norm.running_mean, norm.num_batches_tracked
    (tensor([0.]), tensor(0))
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._norms = [module for module in modules if isinstance(module, _NormBase)]
        self._groups: list[_Alike] = []

    def __getstate__(self) -> dict[str, object]:
        # The copies lie in one tensor, which they would not where they are sent to.
        return {"_norms": self._norms, "_groups": []}

    def note(self) -> None:
        """Copy the statistics as they are now; buffers that were replaced since the last time are found."""
        if not self._norms:
            return
        kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for buffer in self._buffers():
            kinds.setdefault((buffer.dtype, buffer.device), []).append(buffer)
        if len(kinds) != len(self._groups):
            self._groups = [_Alike() for _ in kinds]
        for group, live in zip(self._groups, kinds.values()):
            group.note(live)

    def put_back(self) -> None:
        """Undo what the forwards since `note` did."""
        for group in self._groups:
            group.put_back()

    def put_back_where(self, bad: Tensor) -> None:
        """Undo it where the flag is set; on a device the host does not ask."""
        if not self._groups:
            return
        if bad.device.type == "cpu":
            if bool(bad):
                self.put_back()
            return
        flag = bad.bool()
        for group in self._groups:
            group.put_back_where(flag)

    def _buffers(self) -> Iterator[Tensor]:
        for norm in self._norms:
            for name in _BUFFERS:
                buffer = norm._buffers.get(name)
                # Before its first forward a lazy norm has no statistics.
                if buffer is not None and not is_lazy(buffer):
                    yield buffer


class _Alike:
    """Buffers of one dtype on one device, and their copies side by side in one tensor."""

    def __init__(self) -> None:
        self._live: list[Tensor] = []
        self._flat = torch.empty(0)
        self._kept: list[Tensor] = []

    def note(self, live: list[Tensor]) -> None:
        if not self._fits(live):
            self._flat = torch.cat([buffer.reshape(-1) for buffer in live])
            self._kept = self._views(self._flat, live)
        self._live = live
        torch._foreach_copy_(self._kept, live)

    def put_back(self) -> None:
        torch._foreach_copy_(self._live, self._kept)

    def put_back_where(self, flag: Tensor) -> None:
        if len(self._live) <= _FEW:
            for buffer, kept in zip(self._live, self._kept):
                torch.where(flag, kept, buffer, out=buffer)
            return
        now = torch.cat([buffer.reshape(-1) for buffer in self._live])
        chosen = torch.where(flag, self._flat, now)
        torch._foreach_copy_(self._live, self._views(chosen, self._live))

    def _fits(self, live: list[Tensor]) -> bool:
        """Say whether the copies have the form of these buffers; a recording writes to them, so they stay."""
        flat = self._flat
        if not live or (flat.dtype, flat.device) != (live[0].dtype, live[0].device):
            return False
        return [kept.shape for kept in self._kept] == [buffer.shape for buffer in live]

    @staticmethod
    def _views(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
        parts = torch.split(flat, [buffer.numel() for buffer in like])
        return [part.view(buffer.shape) for part, buffer in zip(parts, like)]

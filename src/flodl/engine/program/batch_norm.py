"""Running statistics of batch norm, saved before a forward pass and restored if its update is skipped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
# Up to this many buffers, one `where` each costs no more than concatenating them.
_FEW = 3


class RunningStatistics:
    """A saved copy of the buffers of a model's batch norms.

    >>> norm = nn.BatchNorm1d(1)
    >>> statistics = RunningStatistics([norm])
    >>> statistics.save()
    >>> _ = norm(torch.tensor([[1.0], [torch.nan]]))
    >>> statistics.restore_where(torch.tensor(1.0))
    >>> norm.running_mean, norm.num_batches_tracked
    (tensor([0.]), tensor(0))
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._norms = [module for module in modules if isinstance(module, _NormBase)]
        self._groups: list[_Alike] = []

    @property
    def is_empty(self) -> bool:
        """Whether the model has no batch norm."""
        return not self._norms

    @property
    def copies(self) -> list[Tensor]:
        """The tensors that hold the copies; a recording writes to them."""
        return [group.flat for group in self._groups]

    def __getstate__(self) -> dict[str, object]:
        # The copies share one tensor, which unpickling would not preserve.
        return {"_norms": self._norms, "_groups": []}

    def save(self) -> None:
        """Copy the current statistics, including buffers that were replaced since the last call."""
        if not self._norms:
            return
        kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for buffer in self._buffers():
            kinds.setdefault((buffer.dtype, buffer.device), []).append(buffer)
        if len(kinds) != len(self._groups):
            self._groups = [_Alike() for _ in kinds]
        for group, live in zip(self._groups, kinds.values()):
            group.save(live)

    def restore(self) -> None:
        """Restore what `save` copied."""
        for group in self._groups:
            group.restore()

    def restore_where(self, bad: Tensor) -> None:
        """Restore it if the flag is set, without a host sync."""
        if not self._groups:
            return
        if bad.device.type != "cpu":
            self.restore_on_device(bad.bool())
        elif bool(bad):
            self.restore()

    def restore_on_device(self, flag: Tensor) -> None:
        """Do what `restore_where` does for a flag on a device: select, instead of reading the flag."""
        for group in self._groups:
            group.restore_where(flag)

    def _buffers(self) -> Iterator[Tensor]:
        for norm in self._norms:
            for name in _BUFFERS:
                buffer = norm._buffers.get(name)
                # A lazy norm has no statistics before its first forward pass.
                if buffer is not None and not is_lazy(buffer):
                    yield buffer


class _Alike:
    """Buffers of one dtype on one device, and their copies, which share one flat tensor."""

    def __init__(self) -> None:
        self._live: list[Tensor] = []
        self.flat = torch.empty(0)
        self._kept: list[Tensor] = []

    def save(self, live: list[Tensor]) -> None:
        if not self._fits(live):
            self.flat = torch.cat([buffer.reshape(-1) for buffer in live])
            self._kept = self._views(self.flat, live)
        self._live = live
        torch._foreach_copy_(self._kept, live)

    def restore(self) -> None:
        torch._foreach_copy_(self._live, self._kept)

    def restore_where(self, flag: Tensor) -> None:
        if len(self._live) <= _FEW:
            for buffer, kept in zip(self._live, self._kept):
                torch.where(flag, kept, buffer, out=buffer)
            return
        now = torch.cat([buffer.reshape(-1) for buffer in self._live])
        chosen = torch.where(flag, self.flat, now)
        torch._foreach_copy_(self._live, self._views(chosen, self._live))

    def _fits(self, live: list[Tensor]) -> bool:
        """Return whether the copies match these buffers; a recording writes to them, so they are kept."""
        flat = self.flat
        if not live or (flat.dtype, flat.device) != (live[0].dtype, live[0].device):
            return False
        return [kept.shape for kept in self._kept] == [buffer.shape for buffer in live]

    @staticmethod
    def _views(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
        parts = torch.split(flat, [buffer.numel() for buffer in like])
        return [part.view(buffer.shape) for part, buffer in zip(parts, like)]

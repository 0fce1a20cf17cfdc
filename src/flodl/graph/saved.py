"""The part of a graph that goes to disk and comes back."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from flodl.checkpoint import LoadReport, load_checkpoint, save_checkpoint
from flodl.checkpoint.file import Target

from .places import as_graph


class Saved(nn.Module):
    """The part of `Graph` that saves and loads its parameters and buffers."""

    def save_checkpoint(self, target: Target) -> None:
        """Write parameters and buffers to a path or a binary stream, whole or not at all."""
        notes = {"structural_hash": as_graph(self).structural_hash}
        save_checkpoint(target, self._named_tensors(), metadata=notes)

    def load_checkpoint(
        self, source: Target, *, allow_missing: Sequence[str] = (), allow_unexpected: Sequence[str] = ()
    ) -> LoadReport:
        """Fill parameters and buffers from a checkpoint, all or none, and say what became of each name."""
        return load_checkpoint(
            source,
            self._named_tensors(),
            allow_missing=allow_missing,
            allow_unexpected=allow_unexpected,
            structural_hash=as_graph(self).structural_hash,
        )

    def _named_tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.state_dict().items() if isinstance(value, Tensor)}

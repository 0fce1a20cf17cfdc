"""The part of a graph that goes to disk and comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from flodl.checkpoint import (
    Format,
    LoadReport,
    PathOrStream,
    Snapshot,
    load_checkpoint,
    save_checkpoint,
    snapshot_cpu,
)

from .paths import as_graph


class Saved(nn.Module):
    """The part of `Graph` that saves and loads its parameters and buffers."""

    def save_checkpoint(self, target: PathOrStream, *, format: Format = "safetensors") -> None:
        """Write parameters and buffers to a path or a binary stream, whole or not at all.

        With `format="fdlc"` names and layout are those of the Rust floDl.
        """
        if format == "fdlc":
            tensors = self._named_tensors()
            renamed: dict[str, Tensor] = {}
            for ours, theirs in self._rust_names().items():
                renamed.setdefault(theirs, tensors[ours])
            save_checkpoint(target, renamed, format=format)
            return
        notes = {"structural_hash": as_graph(self).structural_hash}
        save_checkpoint(target, self._named_tensors(), metadata=notes, format=format)

    def load_checkpoint(
        self,
        source: PathOrStream,
        *,
        prefix: str = "",
        allow_missing: Sequence[str] = (),
        allow_unexpected: Sequence[str] = (),
    ) -> LoadReport:
        """Fill parameters and buffers from a checkpoint, all or none, and say what became of each name.

        With `prefix`, only what the file has under it counts: `prefix="encoder"` takes the encoder out of
        the file of a whole model.
        """
        return load_checkpoint(
            source,
            self._named_tensors(),
            prefix=prefix,
            allow_missing=allow_missing,
            allow_unexpected=allow_unexpected,
            structural_hash=as_graph(self).structural_hash,
            fdlc_names=self._rust_names(),
        )

    def snapshot_cpu(self) -> Snapshot:
        """Copy parameters, buffers and the latest metrics to the CPU, to be saved later by another thread."""
        graph = as_graph(self)
        return Snapshot(
            snapshot_cpu(self._named_tensors()),
            metrics=graph.latest_metrics(),
            epoch=graph.epoch_count,
            metadata={"structural_hash": graph.structural_hash},
        )

    def _named_tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.state_dict().items() if isinstance(value, Tensor)}

    def _rust_names(self) -> dict[str, str]:
        """Say what each tensor is called by the Rust floDl: the node, a slash, and the last name alone.

        It numbers names that a node has several times, and knows tied tensors by their first name only.
        """
        kept = self._named_tensors()
        parameters = {name: p for name, p in self.named_parameters(remove_duplicate=False) if name in kept}
        buffers = {name: b for name, b in self.named_buffers(remove_duplicate=False) if name in kept}
        return {**_numbered(parameters.items()), **_numbered(buffers.items())}


def _numbered(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    first: dict[int, str] = {}
    ours = {name: first.setdefault(id(tensor), name) for name, tensor in tensors}
    # The graph's own parameters stand alone.
    short = {
        name: "/".join(dict.fromkeys((name.split(".")[0], name.split(".")[-1]))) for name in first.values()
    }
    times = Counter(short.values())
    seen: Counter[str] = Counter()
    theirs: dict[str, str] = {}
    for name, plain in short.items():
        theirs[name] = f"{plain}_{seen[plain]}" if times[plain] > 1 else plain
        seen[plain] += 1
    return {name: theirs[held] for name, held in ours.items()}

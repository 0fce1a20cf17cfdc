"""Save and load the parameters and buffers of a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor, nn

from flodl.checkpoint import (
    Format,
    LoadReport,
    MigrateReport,
    PathOrStream,
    Snapshot,
    labels_metadata,
    load_by_order,
    load_checkpoint,
    save_checkpoint,
    snapshot_cpu,
    suggest_keywords,
)
from flodl.core import CheckpointError
from flodl.core.formats import a_type
from flodl.core.usage.calls import CheckpointCallError, explain_methods

from .hashing.hashes import GraphHashes, structure_of
from .metrics import GraphMetrics
from .rust_layout import rust_nodes


@explain_methods(
    CheckpointCallError,
    examples={"load_state_dict_by_order": "Write graph.load_state_dict_by_order(model.state_dict())."},
)
class GraphCheckpoints(GraphMetrics, GraphHashes):
    """Save and load parameters and buffers, and take snapshots of them."""

    @suggest_keywords
    def save_checkpoint(self, target: PathOrStream, *, format: Format = "safetensors") -> None:
        """Write parameters and buffers to a path or a binary stream, atomically.

        `format="fdlc"` writes the names and the layout of the Rust floDl.
        """
        if format == "fdlc":
            tensors = self._named_tensors()
            renamed: dict[str, Tensor] = {}
            for name, rust_name in self._rust_names().items():
                renamed.setdefault(rust_name, tensors[name])
            save_checkpoint(target, renamed, format=format)
            return
        metadata = structure_of(self).as_metadata()
        save_checkpoint(target, self._named_tensors(), metadata=metadata, format=format)

    @suggest_keywords
    def load_checkpoint(
        self,
        source: PathOrStream,
        *,
        prefix: str = "",
        allow_missing: Sequence[str] = (),
        allow_unexpected: Sequence[str] = (),
        allow_different_structure: bool = True,
    ) -> LoadReport:
        """Load parameters and buffers from a checkpoint, all or none, and report the outcome for each name.

        `prefix` selects a part of the file: `prefix="encoder"` loads the encoder from the checkpoint of a
        whole model. With `allow_different_structure=False`, a file is refused unless a graph with the same
        `structural_hash` wrote it; by default, the report says whether that is so.
        """
        return load_checkpoint(
            source,
            self._named_tensors(),
            prefix=prefix,
            allow_missing=allow_missing,
            allow_unexpected=allow_unexpected,
            structural_hash=structure_of(self),
            allow_different_structure=allow_different_structure,
            fdlc_names=self._rust_names(),
            fdlc_nodes=rust_nodes(self),
        )

    def load_state_dict_by_order(self, state: Mapping[str, Tensor] | nn.Module) -> MigrateReport:
        """Load the `state_dict` of a plain model with the same layers in the same order but other names.

        Every pair of tensors must have the same shape and the same last name (`weight`, `bias`); otherwise
        nothing is loaded. Read the report: layers of the same shape are distinguished only by their order.
        """
        tensors = state.state_dict() if isinstance(state, nn.Module) else state
        if not isinstance(tensors, Mapping):
            raise CheckpointError(f"the state is {a_type(tensors)}. Pass a state dict, or the model itself.")
        stored = {name: value for name, value in tensors.items() if isinstance(value, Tensor)}
        return load_by_order(stored, self._named_tensors())

    def snapshot_cpu(self) -> Snapshot:
        """Copy parameters, buffers and the latest metrics to the CPU, for another thread to save."""
        tensors = self._named_tensors()
        return Snapshot(
            snapshot_cpu(dict(tensors)),
            metrics=self.latest_metrics(),
            epoch=self.epoch_count,
            metadata={**labels_metadata(tensors), **structure_of(self).as_metadata()},
        )

    def _named_tensors(self) -> dict[str, Tensor]:
        # The state keeps its metadata, such as the names of labels.
        state: dict[str, Tensor] = self.state_dict()
        for name in [name for name, value in state.items() if not isinstance(value, Tensor)]:
            del state[name]
        return state

    def _rust_names(self) -> dict[str, str]:
        """Map each tensor's name to its name in the Rust floDl: the node, a slash, and the last segment.

        Repeated names get a number. A tied tensor goes by its first name only.
        """
        saved = self._named_tensors()
        parameters = {name: p for name, p in self.named_parameters(remove_duplicate=False) if name in saved}
        buffers = {name: b for name, b in self.named_buffers(remove_duplicate=False) if name in saved}
        return {**_numbered(parameters.items()), **_numbered(buffers.items())}


def _numbered(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    first: dict[int, str] = {}
    first_names = {name: first.setdefault(id(tensor), name) for name, tensor in tensors}
    # Parameters of the graph itself have a single segment, which is not repeated.
    short = {
        name: "/".join(dict.fromkeys((name.split(".")[0], name.split(".")[-1]))) for name in first.values()
    }
    counts = Counter(short.values())
    seen: Counter[str] = Counter()
    rust_names: dict[str, str] = {}
    for name, base in short.items():
        rust_names[name] = f"{base}_{seen[base]}" if counts[base] > 1 else base
        seen[base] += 1
    return {name: rust_names[first_name] for name, first_name in first_names.items()}

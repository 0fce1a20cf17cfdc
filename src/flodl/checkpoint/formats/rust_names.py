"""Names in files of the Rust floDl: `node/weight`, where the node is a tag or the number of its creation.

The Rust floDl numbers all nodes of a graph in the order of their creation (`linear_1`, `gelu_2`,
`linear_3`), and writes the tensors of a node flat (`graph_4/weight_0`, `graph_4/weight_1`). A number says
nothing about the type's own count, so nodes without a tag are matched by their order, never by name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flodl.core import CheckpointError

_NUMBERED = re.compile(r".*_(\d+)")


@dataclass(frozen=True)
class RustSlot:
    """A tensor in a file: a whole tensor of the model, or one of `parts` equal blocks of its rows."""

    local: str
    name: str
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class RustNode:
    """A node of a model: its tags, and its tensors in each order in which the Rust floDl may write them."""

    key: str
    tags: tuple[str, ...]
    orders: tuple[tuple[RustSlot, ...], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the node's tensors in the model."""
        return tuple(dict.fromkeys(slot.name for slot in self.orders[0]))


class UnclearNamesError(CheckpointError):
    """The names of a file of the Rust floDl can be matched in no way, or in several."""


def translate(
    stored: Mapping[str, Tensor], nodes: Sequence[RustNode], wanted: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the tensors of a file under the names of the model; raise unless there is exactly one way."""
    groups: dict[str, dict[str, str]] = {}
    for name in stored:
        prefix, _, local = name.rpartition("/")
        groups.setdefault(prefix, {})[local] = name
    nodes = [node for node in nodes if node.orders[0]]
    pairs = _tagged_pairs(groups, nodes)
    used = {prefix for prefix, _ in pairs}
    rest = [prefix for prefix in groups if prefix not in used]
    if unknown := [prefix for prefix in rest if not _NUMBERED.fullmatch(prefix)]:
        raise UnclearNamesError(f"the model has no tag {unknown[0]!r}")
    numbered = sorted(rest, key=lambda prefix: int(prefix.rpartition("_")[2]))
    taken = [node for _, node in pairs]
    untagged = [node for node in nodes if node not in taken]
    if len(numbered) != len(untagged):
        raise UnclearNamesError(
            f"the file has {len(numbered)} nodes with tensors besides {len(pairs)} that are tagged in both, "
            f"the model {len(untagged)} ({_shown(numbered)}; {_shown([node.key for node in untagged])})"
        )
    pairs += zip(numbered, untagged)
    found: dict[str, Tensor] = {}
    for prefix, node in pairs:
        found |= _tensors(prefix, groups[prefix], node, stored, wanted)
    return found


def _tagged_pairs(groups: Mapping[str, object], nodes: Sequence[RustNode]) -> list[tuple[str, RustNode]]:
    by_tag = {tag: node for node in nodes for tag in node.tags}
    found: dict[str, str] = {}
    pairs = []
    for prefix in groups:
        if prefix in by_tag:
            node = by_tag[prefix]
            if node.key in found:
                raise UnclearNamesError(
                    f"{found[node.key]!r} and {prefix!r} are tags of one node, {node.key!r}"
                )
            found[node.key] = prefix
            pairs.append((prefix, node))
    return pairs


def _tensors(
    prefix: str,
    group: Mapping[str, str],
    node: RustNode,
    stored: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return the tensors of one node under their names in the model."""
    fitting = [fit for order in node.orders if (fit := _fit(order, group, stored, wanted)) is not None]
    if not fitting:
        slots = [f"{local} {tuple(stored[name].shape)}" for local, name in group.items()]
        own = [f"{name} {tuple(wanted[name].shape)}" for name in node.names]
        raise UnclearNamesError(f"{prefix!r} has {_shown(slots)}, and the node {node.key!r} {_shown(own)}")
    if any(fit != fitting[0] for fit in fitting):
        raise UnclearNamesError(
            f"{prefix!r} has several tensors of one shape, and the parts of {node.key!r} have several orders"
        )
    blocks: dict[str, list[Tensor]] = {}
    for slot, name in fitting[0].items():
        blocks.setdefault(slot.name, []).append(stored[name])
    return {name: torch.cat(parts) if len(parts) > 1 else parts[0] for name, parts in blocks.items()}


def _fit(
    order: Sequence[RustSlot],
    group: Mapping[str, str],
    stored: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
) -> dict[RustSlot, str] | None:
    """Return the name in the file for each slot; None if names or shapes differ."""
    counts = Counter(slot.local for slot in order)
    seen: Counter[str] = Counter()
    fit: dict[RustSlot, str] = {}
    for slot in order:
        local = f"{slot.local}_{seen[slot.local]}" if counts[slot.local] > 1 else slot.local
        seen[slot.local] += 1
        shape = tuple(wanted[slot.name].shape)
        if slot.parts > 1:
            shape = (shape[0] // slot.parts, *shape[1:])
        if local not in group or tuple(stored[group[local]].shape) != shape:
            return None
        fit[slot] = group[local]
    return fit if len(fit) == len(group) else None


def _shown(words: Sequence[str]) -> str:
    return ", ".join(words[:4]) + (f" and {len(words) - 4} more" if len(words) > 4 else "") or "none"

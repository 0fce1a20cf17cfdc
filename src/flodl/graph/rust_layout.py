"""The tensors of a graph as the Rust floDl arranges them in its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from flodl.checkpoint import RustNode, RustSlot

from .core import GraphCore

# The Rust floDl does not count the batches of a batch norm.
COUNTER = "num_batches_tracked"


def rust_nodes(graph: GraphCore) -> list[RustNode]:
    """Return the nodes of a graph in the order of their creation, each with its tensors.

    A nested graph may have two orders: that of its levels, in which the Rust floDl runs it, and that of its
    creation. A tied tensor belongs to the first node that has it.
    """
    seen: set[int] = set()
    nodes = []
    for index, node in enumerate(graph.spec.nodes):
        module = graph._modules.get(node.key)
        if module is None:
            continue
        found = [
            [*_slots(module, f"{node.key}.", by_level=by_level, of=of)]
            for by_level in (True, False)
            for of in ("parameters", "buffers")
        ]
        orders = [_unseen([*found[0], *found[1]], seen), _unseen([*found[2], *found[3]], seen)]
        seen |= {id(tensor) for slots in found for _, tensor in slots}
        distinct = orders[:1] if orders[0] == orders[1] else orders
        nodes.append(RustNode(node.key, graph.spec.tags_of.get(index, ()), tuple(distinct)))
    return nodes


def _unseen(slots: Sequence[tuple[RustSlot, Tensor]], seen: set[int]) -> tuple[RustSlot, ...]:
    first: dict[int, str] = {}
    kept = []
    for slot, tensor in slots:
        if id(tensor) not in seen and first.setdefault(id(tensor), slot.name) == slot.name:
            kept.append(slot)
    return tuple(kept)


def _slots(module: nn.Module, path: str, *, by_level: bool, of: str) -> Iterator[tuple[RustSlot, Tensor]]:
    if isinstance(module, nn.MultiheadAttention) and of == "parameters":
        yield from _attention_slots(module, path)
        return
    own = module._parameters if of == "parameters" else module._buffers
    for name, tensor in own.items():
        is_saved = name not in module._non_persistent_buffers_set and name != COUNTER
        if tensor is not None and is_saved:
            yield RustSlot(name, path + name), tensor
    for name in _children(module, by_level=by_level):
        child = module._modules[name]
        if child is not None:
            yield from _slots(child, f"{path}{name}.", by_level=by_level, of=of)


def _attention_slots(module: nn.MultiheadAttention, path: str) -> Iterator[tuple[RustSlot, Tensor]]:
    """Yield the projections of query, key, value and output as four linear layers."""
    for part, letter in enumerate("qkv"):
        weight: Tensor | None = getattr(module, "in_proj_weight")  # noqa: B009 (torch's type lacks None)
        if weight is not None:
            yield RustSlot("weight", f"{path}in_proj_weight", part, 3), weight
        else:
            name = f"{letter}_proj_weight"
            yield RustSlot("weight", path + name), getattr(module, name)
        if module.in_proj_bias is not None:
            yield RustSlot("bias", f"{path}in_proj_bias", part, 3), module.in_proj_bias
    yield RustSlot("weight", f"{path}out_proj.weight"), module.out_proj.weight
    if module.out_proj.bias is not None:
        yield RustSlot("bias", f"{path}out_proj.bias"), module.out_proj.bias


def _children(module: nn.Module, *, by_level: bool) -> list[str]:
    """Return the names of the children in order: of creation, or of the levels of a graph."""
    if not isinstance(module, GraphCore) or not by_level:
        return [*module._modules]
    levels: list[int] = []
    for node in module.spec.nodes:
        levels.append(1 + max((levels[index] for index in node.inputs), default=-1))
    order = sorted(range(len(levels)), key=levels.__getitem__)
    keys = [module.spec.nodes[index].key for index in order]
    return [key for key in keys if key in module._modules]

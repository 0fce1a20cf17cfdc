"""Which weight names belong to which node: graphs with the same function may have swapped names."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from ..core import GraphCore


def places_of(graph: GraphCore) -> dict[str, str]:
    """Return the place of each named part with weights: the numbers of its nodes in the order of execution.

    Tags change names, and the structural hash leaves them out. Weights are loaded by name, so a name that is
    at another place makes the same weights compute another function.

    >>> from flodl import FlowBuilder
    >>> model = FlowBuilder(nn.Linear(2, 2)).tag("first").through(nn.Tanh()).through(nn.Linear(2, 2)).build()
    >>> places_of(model)
    {'first': '1', 'linear_2': '3'}
    """
    return dict(_places(graph, "", "", {}))


def _places(module: nn.Module, path: str, place: str, first: dict[int, str]) -> Iterator[tuple[str, str]]:
    """Yield the names and places of parts; children of plain modules have their name as their place.

    A module that is used at several nodes has its first place under all of its names.
    """
    numbers = {}
    if isinstance(module, GraphCore):
        numbers = {node.key: str(index) for index, node in enumerate(module.spec.nodes)}
        for tag in module._initial:
            if f"{tag}_init" in {**module._parameters, **module._buffers}:
                yield f"{path}{tag}_init", f"{place}initial {module.spec.tagged_node[tag]}"
    for name, child in module._modules.items():
        if child is None or next(_saved(child), None) is None:
            continue
        own = first.setdefault(id(child), f"{place}{numbers.get(name, name)}")
        if name in numbers:
            yield f"{path}{name}", own
        yield from _places(child, f"{path}{name}.", f"{own}.", first)


def _saved(module: nn.Module) -> Iterator[str]:
    """Yield the names of the parameters and buffers that a state dict has."""
    for part in module.modules():
        yield from (name for name, value in part._parameters.items() if value is not None)
        hidden = part._non_persistent_buffers_set
        yield from (name for name, value in part._buffers.items() if value is not None and name not in hidden)

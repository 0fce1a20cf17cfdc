"""`Spec`: the frozen description of a graph, written by the builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from flodl.core import InputError

Kind = Literal["input", "state", "call", "merge", "loop", "gate", "switch", "map"]
MergeOp = Literal["add", "mean", "mul", "max", "cat", "callable"]


@dataclass(frozen=True)
class Node:
    """One node, which computes one value. Other nodes refer to it by its index in `Spec.nodes`.

    `sources` are positional arguments, `refs` keyword arguments. A module is stored in the graph under
    `key`, a plain function in `function`.
    """

    key: str
    kind: Kind
    sources: tuple[int, ...] = ()
    refs: tuple[tuple[str, int], ...] = ()
    function: Callable[..., Any] | None = None
    has_module: bool = False
    merge_op: MergeOp | None = None
    merge_dim: int = -1
    spread: bool = True
    carries: str | None = None

    @property
    def inputs(self) -> tuple[int, ...]:
        """All values that the node reads, references last."""
        return self.sources + tuple(index for _, index in self.refs)


@dataclass(frozen=True)
class Spec:
    """A whole graph: its nodes in execution order, and their tags."""

    nodes: tuple[Node, ...]
    output: int
    tags: tuple[tuple[str, int], ...] = ()
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    input_names: tuple[str, ...] = ()
    internal_tags: frozenset[str] = frozenset()
    label: str | None = None

    @cached_property
    def all_input_names(self) -> tuple[str, ...]:
        """The names of all inputs, the stream first."""
        stream = self.nodes[0].key
        # A tag may take the default name of the stream, and the node of the stream gets another key.
        return ("input" if stream == "input_0" else stream, *self.input_names)

    @cached_property
    def tag_index(self) -> dict[str, int]:
        """Map each tag to its position among the tags (not to its node)."""
        return {name: position for position, (name, _) in enumerate(self.tags)}

    @cached_property
    def tagged_node(self) -> dict[str, int]:
        """Map each tag to the index of its node."""
        return dict(self.tags)

    @cached_property
    def group_members(self) -> dict[str, tuple[str, ...]]:
        """Map each tag group to its tags."""
        return dict(self.groups)

    @cached_property
    def key_index(self) -> dict[str, int]:
        """Map each node's key to its index."""
        return {node.key: index for index, node in enumerate(self.nodes)}

    @cached_property
    def carried(self) -> tuple[tuple[int, int], ...]:
        """Pairs of (state node that reads, node that writes) for values carried between calls."""
        writers = self.tagged_node
        return tuple(
            (index, writers[node.carries])
            for index, node in enumerate(self.nodes)
            if node.carries is not None
        )

    @cached_property
    def tags_of(self) -> dict[int, tuple[str, ...]]:
        """Map each node's index to its tags, in the order of declaration."""
        found: dict[int, tuple[str, ...]] = {}
        for name, index in self.tags:
            found[index] = (*found.get(index, ()), name)
        return found


def inputs_of(example: Any, stream: str = "input") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return args and kwargs of an example: a tensor, a tuple, or a dict with the stream under its name.

    >>> inputs_of({"input": 1, "ctx": 2})
    ((1,), {'ctx': 2})
    """
    if isinstance(example, Mapping):
        named = dict(example)
        if stream not in named:
            names = ", ".join(map(repr, named)) or "nothing"
            raise InputError(f"the example names {names}. Pass the stream as {stream!r}.")
        return (named.pop(stream),), named
    if isinstance(example, tuple | list) and example and all(isinstance(size, int) for size in example):
        raise InputError(
            f"the example {example} is a shape. Pass a tensor: torch.zeros({', '.join(map(str, example))})."
        )
    return (example if isinstance(example, tuple) else (example,)), {}

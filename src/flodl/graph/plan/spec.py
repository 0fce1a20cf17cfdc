"""The frozen description of a graph: what the builder writes and everything else reads."""

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
    """How one value is made; a value is named by the index of its node in `Spec.nodes`.

    `sources` flow in as positional arguments, `refs` as keywords. A node whose callable is a module
    keeps it in the graph under `key`; a plain function sits in `function`.
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
        """Every value that the node reads, the references last."""
        return self.sources + tuple(index for _, index in self.refs)


@dataclass(frozen=True)
class Spec:
    """A whole graph: its nodes in the order in which they run, and the names that point at them."""

    nodes: tuple[Node, ...]
    output: int
    tags: tuple[tuple[str, int], ...] = ()
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    input_names: tuple[str, ...] = ()
    internal_tags: frozenset[str] = frozenset()
    label: str | None = None

    @cached_property
    def tag_index(self) -> dict[str, int]:
        """From a tag to its position among the tags (not to its node)."""
        return {name: position for position, (name, _) in enumerate(self.tags)}

    @cached_property
    def tagged_node(self) -> dict[str, int]:
        """From a tag to the index of its node."""
        return dict(self.tags)

    @cached_property
    def group_members(self) -> dict[str, tuple[str, ...]]:
        """From a tag group to its tags."""
        return dict(self.groups)

    @cached_property
    def key_index(self) -> dict[str, int]:
        """From a node's key to its index."""
        return {node.key: index for index, node in enumerate(self.nodes)}

    @cached_property
    def carried(self) -> tuple[tuple[int, int], ...]:
        """Pairs of (state node that reads, node that writes) for values kept between calls."""
        writers = self.tagged_node
        return tuple(
            (index, writers[node.carries])
            for index, node in enumerate(self.nodes)
            if node.carries is not None
        )

    @cached_property
    def tags_of(self) -> dict[int, tuple[str, ...]]:
        """From a node's index to its tags, first declared first."""
        found: dict[int, tuple[str, ...]] = {}
        for name, index in self.tags:
            found[index] = (*found.get(index, ()), name)
        return found


def inputs_of(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Take an example apart: a tensor, a tuple of all inputs in order, or a dict with the stream as "input".

    >>> inputs_of({"input": 1, "ctx": 2})
    ((1,), {'ctx': 2})
    """
    if isinstance(example, Mapping):
        named = dict(example)
        if "input" not in named:
            names = ", ".join(map(repr, named)) or "nothing"
            raise InputError(f"the example names {names}. Put the stream under 'input'.")
        return (named.pop("input"),), named
    if isinstance(example, tuple) and example and all(isinstance(size, int) for size in example):
        raise InputError(f"the example {example} is a shape. Give a tensor: torch.zeros{example}.")
    return (example if isinstance(example, tuple) else (example,)), {}

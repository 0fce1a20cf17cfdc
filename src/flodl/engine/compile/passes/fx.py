"""Writing into a program that torch's compiler is about to fuse: new calls, joined parts, the order of nodes.

Imported only when something is compiled.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

_aten = torch.ops.aten
# How many of the first arguments are queries, keys and values, or what comes back through them and these.
ATTENTION: dict[Any, int] = {
    _aten._scaled_dot_product_efficient_attention.default: 3,
    _aten._scaled_dot_product_flash_attention.default: 3,
    _aten._scaled_dot_product_cudnn_attention.default: 3,
    _aten._scaled_dot_product_flash_attention_for_cpu.default: 3,
    _aten._scaled_dot_product_efficient_attention_backward.default: 4,
    _aten._scaled_dot_product_flash_attention_backward.default: 4,
    _aten._scaled_dot_product_cudnn_attention_backward.default: 4,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: 4,
}

_OF_THE_VALUE = "val", "tensor_meta", "unbacked_bindings", "eager_input_vals"


def is_cuda_float32(node: Node) -> bool:
    """Say whether a value is a float32 tensor on CUDA."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_cuda and value.dtype is torch.float32


def is_cuda(node: Node) -> bool:
    """Say whether a value is a tensor on CUDA."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_cuda


def is_pointwise(node: Node) -> bool:
    """Say whether each number of a value is computed by itself, so that it can be done in whatever order."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def insert_call(
    graph: Graph, target: Any, arguments: tuple[Any, ...], *, instead_of: Node | None = None, **named: Any
) -> Node:
    """Add a call and work out what its value will be."""
    made = graph.call_function(target, arguments, named)
    if instead_of is not None:
        copy_meta(instead_of, made)
    values = torch.fx.node.map_arg(arguments, lambda node: node.meta["val"])
    made.meta["val"] = target(*values, **named)
    return made


def copy_meta(before: Node, made: Node) -> None:
    """Let a new node say what is known of the one whose place it takes.

    Before forward and backward are told apart, that is on which side it belongs, and whether a checkpoint
    wants it to be computed again.
    """
    made.meta.update({key: value for key, value in before.meta.items() if key not in _OF_THE_VALUE})


def owns_memory(node: Node) -> bool:
    """Say whether a value was computed, and is no view of another one."""
    parted = node.args[0] if node.target is operator.getitem else node
    target = parted.target if isinstance(parted, Node) else None
    return isinstance(target, torch._ops.OpOverload) and all(
        each.alias_info is None for each in target._schema.returns
    )


def is_mutated(node: Node) -> bool:
    """Say whether a value that was given to the program becomes another one at its end."""
    return any(user.target is _aten.copy_.default and user.args[0] is node for user in node.users)


def operands(product: Node) -> tuple[Node, Node]:
    """Give the two matrices of a product."""
    left, right = product.args
    assert isinstance(left, Node)
    assert isinstance(right, Node)
    return left, right


def concat_rows(graph: Graph, parts: Sequence[Node]) -> Node:
    """Lay parts below each other."""
    return insert_call(graph, _aten.cat.default, (list(parts), 0))


def concat_columns(graph: Graph, parts: Sequence[Node]) -> Node:
    """Join along the second side; transposed parts are stacked first, which needs no transposed copy."""
    if all(map(is_transposed, parts)):
        below = concat_rows(graph, [_exchanged(part) for part in parts])
        return insert_call(graph, _aten.permute.default, (below, [1, 0]))
    return insert_call(graph, _aten.cat.default, (list(parts), 1))


def stack_batch(graph: Graph, parts: Sequence[Node]) -> Node:
    """Give one tensor with a part in each place; the same part everywhere is not copied."""
    count, shape = len(parts), list(parts[0].meta["val"].shape)
    if all(part is parts[0] for part in parts):
        alone = insert_call(graph, _aten.unsqueeze.default, (parts[0], 0))
        return insert_call(graph, _aten.expand.default, (alone, [count, *shape]))
    if all(map(is_transposed, parts)):
        below = concat_rows(graph, [_exchanged(part) for part in parts])
        batch = insert_call(graph, _aten.view.default, (below, [count, *shape[::-1]]))
        return insert_call(graph, _aten.permute.default, (batch, [0, 2, 1]))
    return insert_call(graph, _aten.view.default, (concat_rows(graph, parts), [count, *shape]))


def is_transposed(node: Any) -> bool:
    """Say whether a matrix is another one with its sides exchanged.

    >>> graph = Graph()
    >>> x = graph.placeholder("x")
    >>> is_transposed(x), is_transposed(graph.call_function(_aten.permute.default, (x, [1, 0])))
    (False, True)
    """
    return isinstance(node, Node) and node.target is _aten.permute.default and node.args[1] == [1, 0]


def is_row_sum(node: Node) -> bool:
    """Say whether a node adds up the rows of a matrix."""
    is_sum = node.target is _aten.sum.dim_IntList and not node.kwargs
    return is_sum and node.args[1] == [0]


def _exchanged(transposed: Node) -> Node:
    given = transposed.args[0]
    assert isinstance(given, Node)
    return given


class Ancestry:
    """Which values each value of a program is made from.

    Where random numbers are drawn, nothing may be moved.
    """

    def __init__(self, graph: Graph) -> None:
        self._bit: dict[Node, int] = {}
        self._from: dict[Node, int] = {}
        self._stays = draws_random_numbers(graph)
        for place, node in enumerate(graph.nodes):
            self._bit[node] = 1 << place
            found = 0
            for given in node.all_input_nodes:
                found |= self._bit[given] | self._from[given]
            self._from[node] = found

    def is_independent(self, node: Node, others: Sequence[Node]) -> bool:
        """Say whether a value may be computed together with others, where the first of them is."""
        made_from, bit = self._from[node], self._bit[node]
        if any(made_from & self._bit[other] or self._from[other] & bit for other in others):
            return False
        # The bits grow with the place.
        first = self._bit[others[0]] if others and self._stays else math.inf
        return all(self._bit[given] < first for given in node.all_input_nodes)


def with_ancestors(nodes: Iterable[Node]) -> set[Node]:
    """Give the values that any of these are made from, and themselves."""
    found: set[Node] = set()
    waiting = [*nodes]
    while waiting:
        if (node := waiting.pop()) not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def draws_random_numbers(graph: Graph) -> bool:
    """Say whether a program draws random numbers, which must stay in the order in which eager draws them."""
    return any(_is_drawn(part) for node in graph.nodes for part in (node.target, *node.args))


def _is_drawn(part: Any) -> bool:
    """Say whether an operator draws; a checkpoint gives it to another one, which runs it."""
    return torch.Tag.nondeterministic_seeded in getattr(part, "tags", ())


def sort_topologically(graph: Graph) -> None:
    """Let every value come before its readers again, and otherwise leave the order as it is."""
    from torch._inductor.pattern_matcher import stable_topological_sort

    stable_topological_sort(graph)

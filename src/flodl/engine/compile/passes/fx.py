"""Functions that query and rewrite FX graphs: inserted calls, concatenation, ancestors, order of nodes.

Imported only to compile.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Container, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._inductor import inductor_prims  # noqa: F401 - defines an operator
from torch.fx import Graph, Node

_aten = torch.ops.aten
# How many leading arguments are queries, keys and values, or the output gradient followed by these.
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

# The types of mixed precision.
NARROW_TYPES = torch.bfloat16, torch.float16
_VALUE_KEYS = "val", "tensor_meta", "unbacked_bindings", "eager_input_vals"


def fake_value(node: Any) -> Any:
    """Return the fake value of a node; it has another name in a graph before autograd."""
    return node.meta.get("val", node.meta.get("example_value")) if isinstance(node, Node) else None


def fake_mode(node: Node) -> AbstractContextManager[Any]:
    """Return the mode in which new tensors are fake, like the value of this node."""
    return node.meta["val"].fake_mode  # type: ignore[no-any-return]


def is_cuda_float32(node: Node) -> bool:
    """Return whether a value is a float32 tensor on CUDA."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_cuda and value.dtype is torch.float32


def is_cuda(node: Node) -> bool:
    """Return whether a value is a tensor on CUDA."""
    value = fake_value(node)
    return isinstance(value, torch.Tensor) and value.is_cuda


def is_narrow(node: Any) -> bool:
    """Return whether a value is a tensor in 16 bits on CUDA, whose sizes are known."""
    value = fake_value(node)
    return (
        isinstance(value, torch.Tensor)
        and is_cuda(node)
        and value.dtype in NARROW_TYPES
        and all(isinstance(size, int) for size in value.shape)
    )


def is_zeros(node: Any) -> bool:
    """Return whether a node creates a tensor of zeros."""
    is_full = isinstance(node, Node) and node.target is _aten.full.default
    return bool(is_full and node.args[1] == 0)


def is_pointwise(node: Node) -> bool:
    """Return whether a value is computed elementwise, so that its elements may be in any order."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def insert_call(
    graph: Graph, target: Any, arguments: tuple[Any, ...], *, instead_of: Node | None = None, **named: Any
) -> Node:
    """Insert a call node and compute its fake value."""
    node = graph.call_function(target, arguments, named)
    if instead_of is not None:
        copy_meta(instead_of, node)
    values = torch.fx.node.map_arg(arguments, lambda node: node.meta["val"])
    node.meta["val"] = target(*values, **named)
    return node


def with_strides(
    graph: Graph, value: Node, strides: Sequence[int] | None = None, *, instead_of: Node | None = None
) -> Node:
    """Insert a value with these strides, by default those of a contiguous tensor.

    Torch's compiler gives a clone the strides of its source.
    """
    if strides is None:
        strides = torch.empty(value.meta["val"].shape, device="meta").stride()
    target = torch.ops.prims.inductor_force_stride_order.default
    return insert_call(graph, target, (value, list(strides)), instead_of=instead_of)


def copy_meta(old: Node, new: Node) -> None:
    """Copy the metadata of a node to the one that replaces it, except for its value.

    Before the graph is partitioned, that is whether it belongs to forward or backward, and whether activation
    checkpointing recomputes it.
    """
    new.meta.update({key: value for key, value in old.meta.items() if key not in _VALUE_KEYS})


def owns_memory(node: Node) -> bool:
    """Return whether a value was computed, and is not a view of another value."""
    source = node.args[0] if node.target is operator.getitem else node
    target = source.target if isinstance(source, Node) else None
    return isinstance(target, torch._ops.OpOverload) and all(
        each.alias_info is None for each in target._schema.returns
    )


def behind(value: Node, functions: Container[Any]) -> Node:
    """Return the value to which these functions, such as views, were applied."""
    while value.target in functions and value.all_input_nodes:
        value = value.all_input_nodes[0]
    return value


def is_mutated(node: Node) -> bool:
    """Return whether the program overwrites one of its inputs at its end."""
    return any(user.target is _aten.copy_.default and user.args[0] is node for user in node.users)


def operands(matmul: Node) -> tuple[Node, Node]:
    """Return the two matrices of a matmul."""
    left, right = matmul.args
    assert isinstance(left, Node)
    assert isinstance(right, Node)
    return left, right


def concat_rows(graph: Graph, parts: Sequence[Node]) -> Node:
    """Concatenate along the first dimension."""
    return insert_call(graph, _aten.cat.default, (list(parts), 0))


def concat_columns(graph: Graph, parts: Sequence[Node]) -> Node:
    """Concatenate along the second dimension; transposed parts along the first, without a transposed copy."""
    if all(map(is_transposed, parts)):
        rows = concat_rows(graph, [_untransposed(part) for part in parts])
        return insert_call(graph, _aten.permute.default, (rows, [1, 0]))
    return insert_call(graph, _aten.cat.default, (list(parts), 1))


def stack_batch(graph: Graph, parts: Sequence[Node]) -> Node:
    """Stack parts into a batch; if all are the same node, expand it without a copy."""
    count, shape = len(parts), list(parts[0].meta["val"].shape)
    if all(part is parts[0] for part in parts):
        single = insert_call(graph, _aten.unsqueeze.default, (parts[0], 0))
        return insert_call(graph, _aten.expand.default, (single, [count, *shape]))
    if all(map(is_transposed, parts)):
        rows = concat_rows(graph, [_untransposed(part) for part in parts])
        batch = insert_call(graph, _aten.view.default, (rows, [count, *shape[::-1]]))
        return insert_call(graph, _aten.permute.default, (batch, [0, 2, 1]))
    return insert_call(graph, _aten.view.default, (concat_rows(graph, parts), [count, *shape]))


def is_transposed(node: Any) -> bool:
    """Return whether a node transposes a matrix.

    >>> graph = Graph()
    >>> x = graph.placeholder("x")
    >>> is_transposed(x), is_transposed(graph.call_function(_aten.permute.default, (x, [1, 0])))
    (False, True)
    """
    return isinstance(node, Node) and node.target is _aten.permute.default and node.args[1] == [1, 0]


def is_row_sum(node: Node) -> bool:
    """Return whether a node sums the rows of a matrix."""
    is_sum = node.target is _aten.sum.dim_IntList and not node.kwargs
    return is_sum and node.args[1] == [0]


def _untransposed(transposed: Node) -> Node:
    matrix = transposed.args[0]
    assert isinstance(matrix, Node)
    return matrix


class Ancestry:
    """The ancestors of each node of a graph.

    If the graph draws random numbers, no node may move.
    """

    def __init__(self, graph: Graph) -> None:
        self._bit: dict[Node, int] = {}
        self._ancestors: dict[Node, int] = {}
        self._is_fixed = draws_random_numbers(graph)
        for index, node in enumerate(graph.nodes):
            self._bit[node] = 1 << index
            ancestors = 0
            for source in node.all_input_nodes:
                ancestors |= self._bit[source] | self._ancestors[source]
            self._ancestors[node] = ancestors

    def is_independent(self, node: Node, others: Sequence[Node]) -> bool:
        """Return whether a node can be computed together with others, at the position of the first."""
        ancestors, bit = self._ancestors[node], self._bit[node]
        if any(ancestors & self._bit[other] or self._ancestors[other] & bit for other in others):
            return False
        # The bits grow with the position.
        first = self._bit[others[0]] if others and self._is_fixed else math.inf
        return all(self._bit[source] < first for source in node.all_input_nodes)


def with_ancestors(nodes: Iterable[Node]) -> set[Node]:
    """Return these nodes and all their ancestors."""
    found: set[Node] = set()
    waiting = [*nodes]
    while waiting:
        if (node := waiting.pop()) not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def draws_random_numbers(graph: Graph) -> bool:
    """Return whether a graph draws random numbers, which must keep eager's order."""
    return any(map(draws_random_numbers_at, graph.nodes))


def draws_random_numbers_at(node: Node) -> bool:
    """Return whether a node draws random numbers."""
    return any(_is_drawn(part) for part in (node.target, *node.args))


def _is_drawn(part: Any) -> bool:
    """Return whether an operator draws; checkpointing passes it as an argument to a higher-order operator."""
    return torch.Tag.nondeterministic_seeded in getattr(part, "tags", ())


def sort_topologically(graph: Graph) -> None:
    """Move every node before its readers again, and otherwise keep the order."""
    from torch._inductor.pattern_matcher import stable_topological_sort

    stable_topological_sort(graph)

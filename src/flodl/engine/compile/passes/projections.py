"""A graph pass that merges linear layers with the same input; imported only to compile."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from . import early_graph, fx

_NARROW = torch.bfloat16, torch.float16
# A wider layer fills the device by itself.
_MAX_COLUMNS = 1024
# So that each part of the gradient is aligned.
_MULTIPLE = 8
_REGIONS = (
    torch.amp.autocast_mode._enter_autocast,
    torch.amp.autocast_mode._exit_autocast,
    torch._C._set_grad_enabled,
)
_VIEWS = {"view", "transpose", "permute", "unflatten", "unsqueeze", "squeeze", "expand", "chunk", "split"}


class MergeProjections(CustomGraphPass):
    """Compute linear layers with the same input in one matmul: queries, keys and values of attention.

    Each of them leaves part of the device idle. In BERT-base with 4096 tokens on an H200, a weight gradient
    of 768×768 runs at 300 TFLOP/s, a larger one at 620. The pass runs before autograd, so that the gradients
    are merged as well. Only in 16 bits.
    """

    def __call__(self, graph: Graph) -> None:
        by_input: dict[Node, list[Node]] = {}
        for node in graph.find_nodes(op="call_function", target=torch.nn.functional.linear):
            if (found := _Linear.of(node)) is not None:
                by_input.setdefault(found.input, []).append(node)
        for nodes in by_input.values():
            for group in _groups(nodes):
                if len(group) > 1:
                    _merge(graph, group)

    def uuid(self) -> Any:
        files = __file__, early_graph.__file__, fx.__file__
        return get_hash_for_files(files, "merged projections")


class _Linear:
    """The arguments of a linear layer."""

    def __init__(self, input: Node, weight: Node, bias: Node | None) -> None:
        self.input, self.weight, self.bias = input, weight, bias

    @staticmethod
    def of(node: Node) -> _Linear | None:
        """Return the arguments of a call that can be merged with others, else None."""
        names = ("input", "weight", "bias")
        arguments = {"bias": None, **dict(zip(names, node.args)), **node.kwargs}
        parameters = [each for each in (arguments["weight"], arguments["bias"]) if each is not None]
        value = fx.fake_value(node)
        if not isinstance(value, Tensor) or not fx.is_cuda(node) or value.dtype not in _NARROW:
            return None
        if not all(isinstance(each, Node) and each.op == "placeholder" for each in parameters):
            return None
        columns = value.shape[-1]
        is_small = isinstance(columns, int) and columns <= _MAX_COLUMNS and columns % _MULTIPLE == 0
        has_fixed_sizes = all(isinstance(size, int) for size in value.shape)
        is_mergeable = (
            is_small and has_fixed_sizes and value.dim() > 1 and _accepts_strides(node, _part(value))
        )
        return _Linear(**arguments) if is_mergeable else None  # type: ignore[arg-type]


def _part(value: Tensor) -> Tensor:
    """Return a value like this one that is a part of wider rows."""
    return value.new_empty((*value.shape[:-1], 2 * value.shape[-1]))[..., : value.shape[-1]]


def _accepts_strides(node: Node, value: Any) -> bool:
    """Return whether all views of a result are also possible if it is a part of wider rows."""
    for user in node.users:
        name = user.target if isinstance(user.target, str) else getattr(user.target, "__name__", "")
        if name == "as_strided":
            return False
        if name not in _VIEWS and user.target is not operator.getitem:
            continue
        try:
            arguments = torch.fx.node.map_arg(
                (user.args, user.kwargs), lambda each: value if each is node else fx.fake_value(each)
            )
            target: Any = getattr(torch.Tensor, name) if user.op == "call_method" else user.target
            viewed = target(*arguments[0], **arguments[1])
        except (RuntimeError, ValueError, TypeError, AttributeError):
            return False
        if not _accepts_strides(user, viewed):
            return False
    return True


def _groups(nodes: Sequence[Node]) -> Iterator[list[Node]]:
    """Yield linear layers that can be computed at the place of the first."""
    group: list[Node] = []
    for node in nodes:
        if group and not _belongs_to(node, group):
            yield group
            group = []
        group.append(node)
    yield group


def _belongs_to(node: Node, group: Sequence[Node]) -> bool:
    linear, first = _Linear.of(node), _Linear.of(group[0])
    assert linear is not None
    assert first is not None
    is_alike = (
        fx.fake_value(node).dtype is fx.fake_value(group[0]).dtype
        and (linear.bias is None) == (first.bias is None)
        and _kind(linear.weight) == _kind(first.weight)
        and (linear.bias is None or _kind(linear.bias) == _kind(first.bias))
        # A weight that is used twice would have two gradients in one matmul.
        and all(other.args[1:2] != node.args[1:2] for other in group)
    )
    return is_alike and not _has_barrier(group[-1], node)


def _kind(parameter: Node | None) -> tuple[torch.dtype, bool]:
    value = fx.fake_value(parameter)
    return value.dtype, value.requires_grad


def _has_barrier(first: Node, last: Node) -> bool:
    """Return whether values may change between two nodes, or are computed in another mode."""
    node = first
    while (node := node.next) is not last:
        if early_graph.writes(node) or node.target in _REGIONS:
            return True
    return False


def _merge(graph: Graph, group: Sequence[Node]) -> None:
    linears = [found for node in group if (found := _Linear.of(node)) is not None]
    widths = [fx.fake_value(node).shape[-1] for node in group]
    with graph.inserting_before(group[0]):
        weight = _stack(graph, [each.weight for each in linears])
        biases = [each.bias for each in linears if each.bias is not None]
        bias = _stack(graph, biases) if biases else None
        # Under autocast, the value has a different dtype from its operands.
        merged = graph.call_function(torch.nn.functional.linear, (linears[0].input, weight, bias))
        old = fx.fake_value(group[0])
        merged.meta["example_value"] = old.new_empty((*old.shape[:-1], sum(widths)))
        parts = early_graph.insert_call(graph, torch.split, (merged, widths, -1))
        results = [
            early_graph.insert_call(graph, operator.getitem, (parts, index)) for index in range(len(group))
        ]
    for node, result in zip(group, results):
        node.replace_all_uses_with(result)
        graph.erase_node(node)


def _stack(graph: Graph, parameters: Sequence[Node]) -> Node:
    return early_graph.insert_call(graph, torch.cat, ([*parameters], 0))

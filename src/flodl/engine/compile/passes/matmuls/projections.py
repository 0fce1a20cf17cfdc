"""A graph pass that merges linear layers with the same input; imported only to compile."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from .. import early_graph, fx

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
        by_input: dict[Node, list[_Linear]] = {}
        for node in graph.find_nodes(op="call_function", target=torch.nn.functional.linear):
            if (found := _linear(node)) is not None:
                by_input.setdefault(found.input, []).append(found)
        for layers in by_input.values():
            for group in _groups(layers):
                if len(group) > 1:
                    _merge(graph, group)

    def uuid(self) -> Any:
        files = __file__, early_graph.__file__, fx.__file__
        return get_hash_for_files(files, "merged projections")


@dataclass(frozen=True)
class _Linear:
    """A call of a linear layer, with its arguments."""

    node: Node
    input: Node
    weight: Node
    bias: Node | None

    @property
    def kind(self) -> object:
        """What layers that are merged have in common."""
        parameters = (self.weight,) if self.bias is None else (self.weight, self.bias)
        values = map(fx.fake_value, parameters)
        return fx.fake_value(self.node).dtype, [(value.dtype, value.requires_grad) for value in values]


def _linear(node: Node) -> _Linear | None:
    """Return a layer that can be merged with others, else None."""
    names = ("input", "weight", "bias")
    arguments: dict[str, Any] = {"bias": None, **dict(zip(names, node.args)), **node.kwargs}
    parameters = [each for each in (arguments["weight"], arguments["bias"]) if each is not None]
    if not fx.is_narrow(node) or not all(isinstance(each, Node) for each in parameters):
        return None
    value = fx.fake_value(node)
    is_mergeable = (
        all(each.op == "placeholder" for each in parameters)
        and value.dim() > 1
        and value.shape[-1] <= _MAX_COLUMNS
        and value.shape[-1] % _MULTIPLE == 0
        and _accepts_strides(node, _part(value))
    )
    return _Linear(node, **arguments) if is_mergeable else None


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


def _groups(layers: Sequence[_Linear]) -> Iterator[list[_Linear]]:
    """Yield layers that can be computed at the place of the first."""
    group: list[_Linear] = []
    for layer in layers:
        if group and not _belongs_to(layer, group):
            yield group
            group = []
        group.append(layer)
    yield group


def _belongs_to(layer: _Linear, group: Sequence[_Linear]) -> bool:
    # A weight that is used twice would have two gradients in one matmul.
    is_new = all(other.weight is not layer.weight for other in group)
    return is_new and layer.kind == group[0].kind and not _has_barrier(group[-1].node, layer.node)


def _has_barrier(first: Node, last: Node) -> bool:
    """Return whether values may change between two nodes, or are computed in another mode."""
    node = first
    while (node := node.next) is not last:
        if early_graph.writes(node) or node.target in _REGIONS:
            return True
    return False


def _merge(graph: Graph, group: Sequence[_Linear]) -> None:
    first = group[0]
    biases = [layer.bias for layer in group if layer.bias is not None]
    widths = [fx.fake_value(layer.node).shape[-1] for layer in group]
    with graph.inserting_before(first.node):
        weight = _stack(graph, [layer.weight for layer in group])
        bias = _stack(graph, biases) if biases else None
        # Under autocast, the value has a different dtype from its operands.
        merged = graph.call_function(torch.nn.functional.linear, (first.input, weight, bias))
        old = fx.fake_value(first.node)
        merged.meta["example_value"] = old.new_empty((*old.shape[:-1], sum(widths)))
        parts = early_graph.insert_call(graph, torch.split, (merged, widths, -1))
        for index, layer in enumerate(group):
            part = early_graph.insert_call(graph, operator.getitem, (parts, index))
            layer.node.replace_all_uses_with(part)
    for layer in group:
        graph.erase_node(layer.node)


def _stack(graph: Graph, parameters: Sequence[Node]) -> Node:
    return early_graph.insert_call(graph, torch.cat, ([*parameters], 0))

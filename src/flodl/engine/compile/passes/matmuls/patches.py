"""A graph pass that computes convolutions over separate patches as matmuls; imported only to compile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from .. import early_graph, fx

_aten = torch.ops.aten
# Arguments of `torch.conv2d` in order, with their defaults.
_DEFAULTS = {
    "input": None,
    "weight": None,
    "bias": None,
    "stride": 1,
    "padding": 0,
    "dilation": 1,
    "groups": 1,
}


class PatchesAsMatmuls(CustomGraphPass):
    """Compute a convolution whose patches do not overlap, as at the start of a ViT, as a matmul.

    Only in 16 bits: a convolution in float32 may use TF32, where a matmul may not. The gradient of the weight
    takes 0.3 of the 11 ms of a step of ViT-B/16 on an H200 as a convolution, and 0.02 ms as a matmul. The
    pass runs before autograd, so that both directions are matmuls.
    """

    def __call__(self, graph: Graph) -> None:
        for node in list(graph.find_nodes(op="call_function", target=torch.conv2d)):
            arguments = {**_DEFAULTS, **dict(zip(_DEFAULTS, node.args)), **node.kwargs}
            if _is_supported(node, arguments):
                _rewrite(graph, node, arguments)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, early_graph.__file__, fx.__file__), "patches as matmuls")


def _is_supported(node: Node, arguments: dict[str, Any]) -> bool:
    images, weight, result = map(fx.fake_value, (arguments["input"], arguments["weight"], node))
    if not all(isinstance(value, Tensor) and value.dim() == 4 for value in (images, weight, result)):
        return False
    kernel = weight.shape[2:]
    has_fixed_sizes = all(isinstance(size, int) and size > 0 for size in (*images.shape, *weight.shape))
    return (
        has_fixed_sizes
        and fx.is_narrow(node)
        and kernel.numel() > 1
        and tuple(kernel) == _pair(arguments["stride"])
        and _pair(arguments["padding"]) == (0, 0)
        and _pair(arguments["dilation"]) == (1, 1)
        and arguments["groups"] == 1
        and all(size % length == 0 for size, length in zip(images.shape[2:], kernel))
    )


def _pair(value: Any) -> Any:
    return (value, value) if isinstance(value, int) else tuple(value) if len(value) == 2 else value


def _rewrite(graph: Graph, node: Node, arguments: dict[str, Any]) -> None:
    images, weight, bias = (arguments[name] for name in ("input", "weight", "bias"))
    old, result = fx.fake_value(images), fx.fake_value(node)
    number, channels, height, width = old.shape
    outputs, _, rows, columns = fx.fake_value(weight).shape
    down, across = height // rows, width // columns
    # In the order in which the pixels are stored, so that neighbors stay neighbors.
    is_channels_last = not old.is_contiguous() and old.is_contiguous(memory_format=torch.channels_last)
    order = [3, 5, 1] if is_channels_last else [1, 3, 5]

    def call(target: Any, *arguments: Any, **named: Any) -> Node:
        return early_graph.insert_call(graph, target, arguments, **named)

    def cast(value: Node) -> Node:
        is_cast = fx.fake_value(value).dtype is result.dtype
        return value if is_cast else call(_aten._to_copy.default, value, dtype=result.dtype)

    with graph.inserting_before(node):
        split = call(torch.reshape, cast(images), [number, channels, down, rows, across, columns])
        patches = call(torch.permute, split, [0, 2, 4, *order])
        patches = call(torch.reshape, patches, [number * down * across, channels * rows * columns])
        matrix = cast(weight)
        if is_channels_last:
            matrix = call(torch.permute, matrix, [0, 2, 3, 1])
        matrix = call(torch.reshape, matrix, [outputs, channels * rows * columns])
        bias = None if bias is None else cast(bias)
        product = call(torch.nn.functional.linear, patches, matrix, bias)
        pixels = call(torch.reshape, product, [number, down, across, outputs])
        new = call(torch.permute, pixels, [0, 3, 1, 2])
        if result.is_contiguous():
            new = call(torch.clone, new, memory_format=torch.contiguous_format)
    node.replace_all_uses_with(new)
    graph.erase_node(node)

"""A graph pass that recognizes causal masks; imported only to compile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node
from torch.utils._python_dispatch import _disable_current_modes

from . import fx
from .fx import ATTENTION, with_ancestors

_MASKS = "attn_bias", "attn_mask"
# Larger masks are not evaluated.
_MAX_ELEMENTS = 1 << 28
# Scores this low have a weight of zero. Torch uses -65536 for cuDNN, where -inf fails.
_LOWEST = torch.finfo(torch.float16).min


class RecognizeCausalMasks(CustomGraphPass):
    """Let attention compute a causal mask itself, instead of reading one that the program builds.

    Under torch's compiler, transformers passes a mask even where eager does not. The kernels then read it,
    and compute what it hides: 60 µs more for each layer of GPT-2 on an H200.
    """

    def __call__(self, graph: Graph) -> None:
        known: dict[Node, bool] = {}
        for node in list(graph.nodes):
            mask = _argument(node, *_MASKS) if node.target in ATTENTION else None
            if not isinstance(mask, Node) or _argument(node, "is_causal") or not _is_square(node):
                continue
            if mask not in known:
                known[mask] = _is_causal(graph, mask)
            if known[mask]:
                _set_arguments(node, dict.fromkeys(_MASKS) | {"is_causal": True})
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, fx.__file__), "causal masks")


def _names(node: Node) -> list[str]:
    return [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]


def _argument(node: Node, *names: str) -> Any:
    """Return the first argument with one of these names that was passed."""
    given = dict(zip(_names(node), node.args)) | dict(node.kwargs)
    return next((given[name] for name in names if given.get(name) is not None), None)


def _set_arguments(node: Node, new: Mapping[str, Any]) -> None:
    names = _names(node)
    node.args = tuple(new.get(name, value) for name, value in zip(names, node.args))
    left = {name: value for name, value in new.items() if name in names[len(node.args) :]}
    node.kwargs = dict(node.kwargs) | left


def _is_square(node: Node) -> bool:
    """Return whether there are as many queries as keys: otherwise kernels differ in what causal means."""
    first = ATTENTION[node.target] - 3
    queries, keys = (node.args[first + offset].meta["val"] for offset in range(2))  # type: ignore[union-attr]
    return bool(queries.shape[-2] == keys.shape[-2])


def _is_causal(graph: Graph, mask: Node) -> bool:
    """Return whether a mask is computed from constants alone, and hides exactly the later positions."""
    shape = mask.meta["val"].shape
    if not all(isinstance(size, int) for size in shape) or shape.numel() > _MAX_ELEMENTS:
        return False
    needed = with_ancestors([mask])
    if any(node.op != "call_function" or fx.draws_random_numbers_at(node) for node in needed):
        return False
    values: dict[Node, Any] = {}
    with _disable_current_modes(), torch.no_grad():
        for node in graph.nodes:
            if node in needed:
                arguments, named = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*arguments, **named)
        return _hides_later_positions(values[mask])


def _hides_later_positions(mask: Tensor) -> bool:
    shown = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril()
    if mask.dtype is torch.bool:
        return bool((mask == shown).all())
    lowest = mask.min()
    expected = torch.where(shown, torch.zeros_like(lowest), lowest)
    return float(lowest) <= _LOWEST and bool((mask == expected).all())

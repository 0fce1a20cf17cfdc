"""Two fingerprints of a graph: what it computes, and which weights it can load."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .places import is_graph
from .spec import Node, Spec

if TYPE_CHECKING:
    from .graph import Graph

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.Size)


def structural_hash(graph: Graph) -> str:
    """Hash what the graph computes: nodes, wiring, settings and shapes; not names, values or devices."""
    return _digest(_graph_words(graph))


def weights_hash(graph: Graph) -> str:
    """Hash the names and shapes of the state dict: equal hashes can exchange weights."""
    shapes = {name: tuple(getattr(value, "shape", ())) for name, value in graph.state_dict().items()}
    return _digest(f"{name} {shape}" for name, shape in sorted(shapes.items()))


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def _graph_words(graph: Graph) -> list[str]:
    spec = graph._spec
    words = [f"graph inputs={spec.input_names} output={spec.output}"]
    for index, node in enumerate(spec.nodes):
        words.append(f"node {index} {_node_words(node, spec)}")
        if node.has_module or node.function is not None:
            words += _target_words(graph.target(node.key))
    for tag, value in graph._initial.items():
        words.append(f"initial {spec.tagged_node[tag]}")
        words += _value_words(value)
    return words


def _node_words(node: Node, spec: Spec) -> str:
    wiring = f"{node.kind} sources={node.sources} refs={node.refs}"
    merging = f" {node.merge_op} {node.merge_dim if node.merge_op == 'cat' else ''} {node.spread}"
    carrying = f" carries={spec.tagged_node[node.carries]}" if node.carries is not None else ""
    return wiring + (merging if node.merge_op else "") + carrying


def _target_words(target: Any) -> list[str]:
    if is_graph(target):
        return _graph_words(target)
    return _module_words(target) if isinstance(target, nn.Module) else _value_words(target)


def _module_words(module: nn.Module) -> list[str]:
    """Describe a module by its type, its settings, its shapes and its parts."""
    words = [f"module {type(module).__module__}.{type(module).__qualname__} {module.extra_repr()}"]
    for name, value in sorted(vars(module).items()):
        if not name.startswith("_") and name not in ("training", "traces"):
            words += [f"setting {name}", *_value_words(value)]
    words += [f"parameter {name} {tuple(p.shape)}" for name, p in module._parameters.items() if p is not None]
    words += [f"buffer {name} {tuple(b.shape)}" for name, b in module._buffers.items() if b is not None]
    for name, child in module.named_children():
        words += [f"part {name}", *_target_words(child)]
    return words


def _value_words(value: Any) -> list[str]:
    """Describe a setting; what has no stable description counts by its type."""
    if isinstance(value, _PLAIN):
        return [repr(value)]
    if isinstance(value, torch.Tensor):
        return [f"tensor {tuple(value.shape)}"]
    if isinstance(value, tuple | list):
        return [
            f"{type(value).__name__} {len(value)}",
            *(word for item in value for word in _value_words(item)),
        ]
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda item: str(item[0]))
        return [f"dict {len(items)}", *(word for k, v in items for word in [repr(k), *_value_words(v)])]
    if isinstance(value, functools.partial):
        return [
            "partial",
            *_value_words(value.func),
            *_value_words(value.args),
            *_value_words(value.keywords),
        ]
    if isinstance(value, types.FunctionType):
        return _function_words(value)
    if isinstance(value, types.BuiltinFunctionType | type):
        return [f"{value.__module__}.{value.__qualname__}"]
    return [f"{type(value).__module__}.{type(value).__qualname__}"]


def _function_words(function: types.FunctionType) -> list[str]:
    """Describe a Python function by what it does, so that two lambdas differ when their bodies do."""
    words = [f"function {function.__name__}", *_code_words(function.__code__)]
    words += _value_words(function.__defaults__ or ())
    words += _value_words(function.__kwdefaults__ or {})
    for cell in function.__closure__ or ():
        try:
            words += _value_words(cell.cell_contents)
        except ValueError:
            words.append("empty cell")
    return words


def _code_words(code: types.CodeType) -> list[str]:
    words = [code.co_code.hex(), repr(code.co_names)]
    for constant in code.co_consts:
        words += _code_words(constant) if isinstance(constant, types.CodeType) else _value_words(constant)
    return words

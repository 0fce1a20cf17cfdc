"""Two fingerprints of a graph: what it computes, and which weights it can load."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..paths import is_graph
from ..plan.spec import Node, Spec
from .description import Wording

if TYPE_CHECKING:
    from ..graph import Graph


def structural_hash(graph: Graph) -> str:
    """Hash what the graph computes: nodes, wiring, settings and shapes; not names, values or devices."""
    wording = _GraphWording()
    wording.graph(graph)
    return _digest(wording.words)


def weights_hash(graph: Graph) -> str:
    """Hash the names and shapes of the state dict: equal hashes can exchange weights."""
    shapes = {name: _shape(value) for name, value in graph.state_dict().items()}
    return _digest([f"{name} {shape}" for name, shape in sorted(shapes.items())])


def _digest(words: list[str]) -> str:
    return hashlib.sha256("\n".join(words).encode(errors="surrogatepass")).hexdigest()


class _GraphWording(Wording):
    """Describe graphs node by node, and every other module by its settings and parts."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[int, int] = {}

    def graph(self, graph: Graph) -> None:
        spec = graph._spec
        self.say(f"graph inputs={spec.input_names} output={spec.output}")
        for index, node in enumerate(spec.nodes):
            self.say(f"node {index} {_node_words(node, spec)}")
            if node.has_module or node.function is not None:
                self.value(graph.target(node.key))
        for tag, value in graph._initial.items():
            self.say(f"initial {spec.tagged_node[tag]}")
            self.value(value)
            self._tensors(graph, f"{tag}_init")

    def module(self, module: nn.Module) -> None:
        """Describe a module by its type, its settings, its shapes and its parts."""
        if is_graph(module):
            self.graph(module)
            return
        self.say(f"module {type(module).__module__}.{type(module).__qualname__} {module.extra_repr()}")
        for name, value in sorted(vars(module).items()):
            if not name.startswith("_") and name not in ("training", "traces"):
                self.say(f"setting {name}")
                self.value(value)
        self._tensors(module)
        for name, part in module._modules.items():
            if part is not None:
                self.say(f"part {name}")
                self.value(part)

    def _tensors(self, module: nn.Module, only: str | None = None) -> None:
        for kind, table in (("parameter", module._parameters), ("buffer", module._buffers)):
            for name, tensor in table.items():
                if tensor is not None and only in (None, name):
                    self.say(f"{kind} {name if only is None else ''} {self._numbered(tensor)}")

    def _numbered(self, tensor: Tensor) -> str:
        # The number tells a weight that is used twice from two weights of one shape.
        return f"{_shape(tensor)} {self._numbers.setdefault(id(tensor), len(self._numbers))}"


def _shape(value: object) -> str:
    if not isinstance(value, Tensor):
        return "()"
    return "not known yet" if is_lazy(value) else str(tuple(value.shape))


def _node_words(node: Node, spec: Spec) -> str:
    wiring = f"{node.kind} sources={node.sources} refs={node.refs}"
    merging = f" {node.merge_op} {node.merge_dim if node.merge_op == 'cat' else ''} {node.spread}"
    carrying = f" carries={spec.tagged_node[node.carries]}" if node.carries is not None else ""
    return wiring + (merging if node.merge_op else "") + carrying

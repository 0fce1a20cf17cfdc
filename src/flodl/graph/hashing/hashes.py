"""The two hashes of a graph: of what it computes, and of which weights it can load."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flodl.checkpoint.files.structure import Structure
from flodl.core.contents.objects import cached_in, registered

from ..core import GraphCore, Initial
from ..plan.spec import Node, Spec
from .description import Description, Level
from .places import places_of
from .tensor_content import constant_words


class GraphHashes(GraphCore):
    """Provide the structural hash and the weights hash of a graph."""

    def __init__(
        self, spec: Spec, modules: Mapping[str, nn.Module], initial: Mapping[str, Initial] | None = None
    ) -> None:
        super().__init__(spec, modules, initial)
        self._update_hash()

    @property
    def structural_hash(self) -> str:
        """Equal for graphs that compute the same function of input and weights, whatever their names.

        It describes the graph as it was built, or as it was when a node was last replaced.
        """
        return structure_of(self).hash

    @property
    def weights_hash(self) -> str:
        """Equal for graphs that can load each other's weights."""
        return weights_hash(self)

    def _update_hash(self) -> None:
        """Compute the hash once: attributes that modules change while they run must not change it."""
        self._structure = _structure(self)
        has_lazy = any(is_lazy(parameter) for parameter in self.parameters())
        self._hashed = None if has_lazy else _called(self)


def structure_of(graph: GraphHashes) -> Structure:
    """Return the structural hash of a graph with those that files of other versions are compared with."""
    if _called(graph) != graph._hashed:
        graph._update_hash()
    return graph._structure


def _called(graph: GraphHashes) -> list[tuple[nn.Module, object]]:
    """Return the modules of a graph, each with the `forward` that was assigned to it instead of its own."""
    return [(module, vars(module).get("forward")) for module in graph._modules_inside()]


def _structure(graph: GraphCore) -> Structure:
    """Hash what the graph computes: nodes, wiring, settings, shapes, code; not names, values or devices."""
    description = _GraphDescription()
    description.graph(graph)
    levels = (Level.CLASSES, Level.STRUCTURE, Level.FUNCTIONS)
    full, without_code, earlier = (_digest(description.words_up_to(level)) for level in levels)
    return Structure(full, without_code=without_code, earlier=earlier, places=places_of(graph))


def weights_hash(graph: GraphCore) -> str:
    """Hash the names and shapes of the state dict: graphs with equal hashes can exchange weights."""
    shapes = {name: _shape(value) for name, value in graph.state_dict().items()}
    return _digest([f"{name} {shape}" for name, shape in sorted(shapes.items())])


def _digest(words: list[str]) -> str:
    return hashlib.sha256("\n".join(words).encode(errors="surrogatepass")).hexdigest()


class _GraphDescription(Description):
    """Describe graphs node by node, and all other modules by their settings and children."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[int, int] = {}

    def graph(self, graph: GraphCore) -> None:
        spec = graph.spec
        self.add(f"graph inputs={spec.input_names} output={spec.output}")
        for index, node in enumerate(spec.nodes):
            self.add(f"node {index} {_describe_node(node, spec)}")
            if node.has_module or node.function is not None:
                self.value(graph.target(node.key))
        for tag, value in graph._initial.items():
            self.add(f"initial {spec.tagged_node[tag]}")
            self.value(value)
            self._tensors(graph, f"{tag}_init")

    def module(self, module: nn.Module) -> None:
        """Describe a module by its type, settings, shapes and children."""
        if isinstance(module, GraphCore):
            self.graph(module)
            return
        self.add(f"module {type(module).__module__}.{type(module).__qualname__} {module.extra_repr()}")
        self.class_code(type(module), ("forward", "__call__"), {**vars(module), **registered(module)})
        not_settings = {"training", "traces", *cached_in(type(module))}
        for name, value in sorted(vars(module).items()):
            if not name.startswith("_") and name not in not_settings:
                self.add(f"setting {name}")
                self.value(value)
        with self.at(Level.CLASSES):
            for word in constant_words(module):
                self.add(word)
        self._tensors(module)
        for name, child in module._modules.items():
            if child is not None:
                self.add(f"part {name}")
                self.value(child)

    def _tensors(self, module: nn.Module, only: str | None = None) -> None:
        for kind, table in (("parameter", module._parameters), ("buffer", module._buffers)):
            for name, tensor in table.items():
                if tensor is not None and only in (None, name):
                    self.add(f"{kind} {name if only is None else ''} {self._numbered(tensor)}")

    def _numbered(self, tensor: Tensor) -> str:
        # The number distinguishes one weight that is used twice from two weights of the same shape.
        return f"{_shape(tensor)} {self._numbers.setdefault(id(tensor), len(self._numbers))}"


def _shape(value: object) -> str:
    if not isinstance(value, Tensor):
        return "()"
    return "not known yet" if is_lazy(value) else str(tuple(value.shape))


def _describe_node(node: Node, spec: Spec) -> str:
    wiring = f"{node.kind} sources={node.sources} refs={node.refs}"
    merging = f" {node.merge_op} {node.merge_dim if node.merge_op == 'cat' else ''} {node.spread}"
    carrying = f" carries={spec.tagged_node[node.carries]}" if node.carries is not None else ""
    return wiring + (merging if node.merge_op else "") + carrying

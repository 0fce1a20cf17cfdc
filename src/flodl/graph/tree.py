"""The tree of graphs: reading, freezing and switching parts by dotted path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Self

from torch import nn
from torch.nn.parameter import is_lazy

from flodl.core import PathError, paths
from flodl.core.formats import format_count

from . import paths as places
from .control.loop import Loop
from .plan.memory import Memory
from .plan.spec import Spec

if TYPE_CHECKING:
    from .graph import Graph


class Tree(nn.Module):
    """The part of `Graph` that follows paths."""

    _spec: Spec
    _memory: Memory
    _keeps_tags: bool

    @property
    def tags(self) -> tuple[str, ...]:
        """The names of the tagged values of this graph, in the order of declaration."""
        return tuple(name for name, _ in self._spec.tags)

    @property
    def tag_groups(self) -> dict[str, tuple[str, ...]]:
        """The tag groups of this graph, each with its tags."""
        return dict(self._spec.groups)

    @property
    def subgraphs(self) -> dict[str, Graph]:
        """The graphs directly inside, by label; those without one by the name of the node that holds them."""
        inside = places.graphs_inside(places.as_graph(self))
        return {child.label or prefix: child for prefix, child in inside}

    def subgraph(self, path: str) -> Graph:
        """Give the graph that a path leads to."""
        place = self._find(path)
        if not places.is_graph(place.module):
            raise PathError(f"{path!r} is a {place.kind}, not a subgraph. Read a tag with tagged({path!r}).")
        return place.module

    def path_kind(self, path: str) -> Literal["subgraph", "tag", "node"]:
        """Say what a path leads to; an unknown one raises with the nearest names."""
        return self._find(path).kind

    def tagged(self, path: str) -> Any:
        """Give the last value of a tag, or None before the first call."""
        place = self._find(path, tag_first=True)
        if place.kind != "tag":
            raise PathError(f"{path!r} is a {place.kind}, not a tag. Put .tag(…) after the node to read it.")
        owner = place.owner
        if not owner._keeps_tags:
            raise PathError(
                f"tags are not kept, so {path!r} has no value. Set model.keeps_tags = True first."
            )
        return owner._memory.tag_values[owner._spec.tag_index[place.name]]

    def traces(self, path: str) -> list[Any]:
        """Give what a loop body published, one entry per turn: 'refined.attention', or 'attention' alone."""
        *parents, name = paths.split(path)
        loops = self._loops(".".join(parents)) if parents else self._loops(None)
        found = [loop for loop in loops if name in loop.traces.values]
        if len(found) == 1:
            return list(found[0].traces.values[name])
        if len(found) > 1:
            raise PathError(
                f"{len(found)} loops publish {name!r}. Put the loop's tag in front: 'tag.{name}'."
            )
        if published := [known for loop in self._loops_at(path) for known in loop.traces.values]:
            if len(published) == 1:
                return self.traces(f"{path}.{published[0]}")
            raise PathError(
                f"the loop {path!r} publishes {', '.join(map(repr, published))}. Name one of them."
            )
        known = [known for loop in loops for known in loop.traces.values]
        if loops and not any(loop.traces.has_run for loop in loops):
            return []  # what a body will publish is not known before it has run
        raise PathError(f"no loop publishes {path!r}. {paths.suggestion(name, known, known_as='traces')}")

    def modules_at(self, path: str) -> list[nn.Module]:
        """Give the modules that a path, a pattern or a tag group leads to, each once."""
        graph = places.as_graph(self)
        names = self._spec.group_members.get(path, (path,)) if isinstance(path, str) else (path,)
        found = {id(place.module): place.module for name in names for place in places.expand(graph, name)}
        return [module for module in found.values() if module is not None]

    def parameters_at(self, path: str) -> list[nn.Parameter]:
        """Give the parameters under a path or pattern, each once, frozen ones included."""
        found = {id(p): p for module in self.modules_at(path) for p in module.parameters()}
        return list(found.values())

    def freeze(self, path: str, *, eval_mode: bool = False) -> None:
        """Stop the parameters under a path from learning.

        With `eval_mode`, dropout and batch norm under it are stilled too, and stay so through later
        calls of `train()`, until `thaw`.
        """
        for parameter in self._parameters_to_change(path, "freeze"):
            parameter.requires_grad_(False)
            parameter.grad = None  # an optimizer would go on with an old one
        if eval_mode:
            for module in self.modules_at(path):
                mark_stilled(module, True)
                module.eval()

    def thaw(self, path: str) -> None:
        """Let the parameters under a path learn again."""
        for parameter in self._parameters_to_change(path, "thaw"):
            parameter.requires_grad_(True)
        for module in self.modules_at(path):
            for inner in module.modules():
                if is_stilled(inner):
                    mark_stilled(inner, False)
                    inner.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Switch everything to training or evaluation, except what was frozen in evaluation mode."""
        super().train(mode)
        if mode:
            places.as_graph(self)._book.start()
            for module in self.modules():
                if is_stilled(module):
                    module.eval()
        return self

    @contextmanager
    def frozen(self, path: str) -> Iterator[None]:
        """Freeze the parameters under a path for a `with` block, and put them back as they were."""
        before = [(p, p.requires_grad) for p in self._parameters_to_change(path, "freeze")]
        self.freeze(path)
        try:
            yield
        finally:
            for parameter, learns in before:
                parameter.requires_grad_(learns)

    def is_frozen(self, path: str) -> bool:
        """Say whether there are parameters under a path and none of them learns."""
        found = self.parameters_at(path)
        return bool(found) and not any(parameter.requires_grad for parameter in found)

    def set_training(self, path: str, mode: bool) -> None:
        """Put the modules under a path into training or evaluation mode."""
        found = self.modules_at(path)
        if not found:
            raise PathError(
                f"{path!r} has no module to switch: it names a sum or an input. Tag the module itself."
            )
        for module in found:
            module.train(mode)

    def tree_summary(self) -> str:
        """Describe the tree as text: every graph with its parameters (counted by element) and tags."""
        graph = places.as_graph(self)
        return "\n".join(_summary_lines(graph, graph.label or "(root)", "", ""))

    def _find(self, path: str, *, tag_first: bool = False) -> places.Place:
        if paths.is_glob(path):
            raise PathError(f"{path!r} is a pattern; this call takes one path.")
        if isinstance(path, str) and path in self._spec.group_members:
            members = ", ".join(map(repr, self._spec.group_members[path]))
            raise PathError(f"{path!r} is a group of tags. Name one of them: {members}.")
        return places.find(places.as_graph(self), path, tag_first=tag_first)

    def _parameters_to_change(self, path: str, verb: str) -> list[nn.Parameter]:
        found = self.parameters_at(path)
        if not found:
            raise PathError(
                f"{path!r} has no parameters to {verb}: it names a value without any, such as a sum. "
                "Tag the module itself, or name a subgraph."
            )
        return found

    def _loops(self, path: str | None) -> list[Loop]:
        """Give the loops of this graph, or of what a path leads to, without entering graphs inside."""
        if path is not None:
            place = self._find(path)
            if places.is_graph(place.module):
                around = [m for m in self.modules() if isinstance(m, Loop) and m.body is place.module]
                return place.module._loops(None) + around
            return _loops_in(place.module)
        return [loop for module in self._modules.values() for loop in _loops_in(module)]

    def _loops_at(self, path: str) -> list[Loop]:
        try:
            return self._loops(path)
        except PathError:
            return []


def _loops_in(module: nn.Module | None) -> list[Loop]:
    if module is None or places.is_graph(module):
        return []
    own = [module] if isinstance(module, Loop) else []
    return own + [loop for child in module.children() for loop in _loops_in(child)]


def _summary_lines(graph: Graph, name: str, lead: str, branch: str) -> list[str]:
    sized = [parameter for parameter in graph.parameters() if not is_lazy(parameter)]
    total = sum(parameter.numel() for parameter in sized)
    frozen = sum(parameter.numel() for parameter in sized if not parameter.requires_grad)
    words = [f"{format_count(total)} parameters"]
    if frozen:
        words.append("all frozen" if frozen == total else f"{format_count(frozen)} frozen")
    tags = [f"({tag})" if tag in graph._spec.internal_tags else tag for tag in graph.tags]
    if tags:
        words.append("tags: " + ", ".join(tags))
    lines = [f"{lead}{branch}{name}  {', '.join(words)}"]
    below = lead + {"": "", "├── ": "│   ", "└── ": "    "}[branch]
    children = list(graph.subgraphs.items())
    for position, (child_name, child) in enumerate(children):
        last = position == len(children) - 1
        lines += _summary_lines(child, child_name, below, "└── " if last else "├── ")
    return lines


_MARK = "_flodl_stilled"


def is_stilled(module: nn.Module) -> bool:
    """Say whether a module stays in evaluation mode when the graph around it is put into training."""
    return _MARK in module.__dict__


def mark_stilled(module: nn.Module, stilled: bool) -> None:
    """Let a module stay in evaluation mode from now on, or no longer; its mode itself is not changed."""
    if stilled:
        module.__dict__[_MARK] = True
    else:
        module.__dict__.pop(_MARK, None)

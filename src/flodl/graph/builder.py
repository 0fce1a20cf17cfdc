"""The fluent builder: a chain of calls that reads like the model it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from torch import nn

from flodl.core import BuildError, LoopError, RefError, TagError, log
from flodl.core.paths import check_name, suggestion

from .control import Gate, Loop, Map, Switch
from .control.loop import Asked
from .control.map import MapMode
from .draft import (
    Draft,
    check_labels,
    check_required,
    freeze,
    in_running_order,
    name_drafts,
    type_name,
)
from .graph import Graph, Initial, check_initial
from .places import graphs_inside
from .shapes import check_shapes
from .signature import takes_one_sequence
from .spec import Kind, MergeOp

Target = Callable[..., Any]
Merge = Literal["add", "mean", "mul", "max", "cat"] | Target

_MERGE_OPS = ("add", "mean", "mul", "max", "cat")


class FlowBuilder:
    """Build a `Graph` by following the stream: each call adds a node and gives the builder back.

    >>> model = (
    ...     FlowBuilder(nn.Linear(2, 16))
    ...     .through(nn.GELU())
    ...     .also(nn.Linear(16, 16))
    ...     .split([nn.Linear(16, 4), nn.Linear(16, 4)]).merge("cat")
    ...     .through(nn.Linear(8, 2)).tag("output")
    ...     .build()
    ... )
    >>> model.tags
    ('output',)
    """

    def __init__(self, entry: Target | None = None) -> None:
        self._drafts: list[Draft] = []
        self._tagged: dict[str, Draft] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        self._pending: dict[str, Draft] = {}
        self._initial: dict[str, Initial] = {}
        self._internal: set[str] = set()
        self._label: str | None = None
        self._bindable: list[Draft] = []
        self._fresh_fork: Draft | None = None
        self._input = self._add("input", "input")
        self._streams = [self._input]
        if entry is not None:
            self.through(entry)

    def through(self, module: Target) -> FlowBuilder:
        """Send the stream through a module or function."""
        node = self._call(module, self._stream("through"))
        return self._flow([node], bindable=[node])

    def also(self, module: Target) -> FlowBuilder:
        """Add a module's output to the stream: stream + module(stream)."""
        stream = self._stream("also")
        node = self._call(module, stream)
        return self._flow([self._merged("add", [stream, node])], bindable=[node])

    def also_with(self, skip: Target, main: Target) -> FlowBuilder:
        """Add two branches of the stream: skip(stream) + main(stream)."""
        stream = self._stream("also_with")
        skipped, node = self._call(skip, stream), self._call(main, stream)
        return self._flow([self._merged("add", [skipped, node])], bindable=[node])

    def fork(self, module: Target) -> FlowBuilder:
        """Branch off to the side; the stream goes on unchanged. Tag it in the next call to read it."""
        node = self._call(module, self._stream("fork"))
        self._flow(self._streams, bindable=[node])
        self._fresh_fork = node
        return self

    def split(self, modules: Sequence[Target] | Mapping[str, Target]) -> FlowBuilder:
        """Send the stream through several modules side by side; a dict also tags each branch by its name."""
        named = list(modules.items()) if isinstance(modules, Mapping) else None
        branches = list(modules.values()) if isinstance(modules, Mapping) else _several(modules, "split")
        if len(branches) < 2:
            raise BuildError(f"split has {len(branches)} branch. Give it at least 2, or use through.")
        stream = self._stream("split")
        nodes = [self._call(module, stream) for module in branches]
        self._flow(nodes, bindable=nodes)
        for (name, _), node in zip(named or [], nodes):
            self._name(node, name)
        return self

    def merge(self, op: Merge, dim: int = -1) -> FlowBuilder:
        """Join the open streams by add, mean, mul, max, cat (along `dim`) or a function of your own.

        A function with one parameter gets the list of values, one with several gets them one by one.
        """
        if len(self._streams) < 2:
            raise BuildError("merge needs several open streams, there is one. Call split before merge.")
        return self._flow([self._merged(op, self._streams, dim)])

    def tag(self, name: str) -> FlowBuilder:
        """Name the value that was just made, to read it, refer to it and address its node."""
        node = self._fresh_fork or self._stream("tag", "Use tag_group, or merge first")
        self._name(node, name)
        return self

    def tag_group(self, name: str) -> FlowBuilder:
        """Name all open streams at once: `name_0`, `name_1`, …"""
        check_name(name, "tag group")
        if len(self._streams) < 2:
            raise TagError(
                f"tag_group({name!r}) needs several open streams, there is one. Use tag({name!r})."
            )
        if name in self._groups or name in self._tagged:
            raise TagError(
                f"{name!r} is already a {'group' if name in self._groups else 'tag'}. Use another name."
            )
        members = tuple(f"{name}_{position}" for position in range(len(self._streams)))
        for member in members:
            self._check_free(member)
        for member, node in zip(members, self._streams):
            self._name(node, member)
        self._groups[name] = members
        return self

    def using(self, *names: str, init: Initial = None) -> FlowBuilder:
        """Give tagged values to the node just made, as keyword arguments of those names.

        A tag that does not exist yet is carried: the node gets its value of the previous call, and
        `init` (None, "zeros", a tensor, a parameter to learn, or a function of the stream) first.
        """
        if not self._bindable:
            raise RefError(
                "using has no node to bind to: a sum, a merge or the bare input takes no references. "
                "Call it right after through, also, fork, split, a loop, a gate or a switch."
            )
        for name in names:
            check_name(name, "tag")
        if len(set(names)) != len(names):
            raise RefError(f"using({', '.join(map(repr, names))}) names a tag twice. Name each once.")
        for node in self._bindable:
            for name in names:
                self._bind(node, name, init)
        return self

    def input(self, *names: str) -> FlowBuilder:
        """Declare further inputs of the graph, given by name: `model(x, ctx=c)`. The stream stays as it is."""
        if not names:
            raise BuildError("input() declares nothing. Name the inputs: input('ctx').")
        for name in names:
            check_name(name, "input")
            if not name.isidentifier() or name == "input":
                raise TagError(
                    f"the input {name!r} cannot be a keyword argument. Use another name, such as 'ctx'."
                )
            self._check_free(name)
        for name in names:
            self._name(self._add("input", name), name)
        return self

    def loop_body(self, body: Target) -> LoopBuilder:
        """Start a loop over the stream; say how often with for_n, while_cond or until_cond."""
        return LoopBuilder(self, _checked(body, "loop_body"), self._stream("loop_body"))

    def gate(self, router: Target, experts: Sequence[Target]) -> FlowBuilder:
        """Run every expert and add the outputs, weighed by the router."""
        if len(found := _several(experts, "gate")) < 2:
            raise BuildError(f"gate has {len(found)} expert. Give it at least 2, or use through.")
        return self.through(Gate(_checked(router, "gate"), found))

    def switch(self, selector: Target, branches: Sequence[Target], *, masked: bool = False) -> FlowBuilder:
        """Run the branch that the selector names, for the batch or for each sample."""
        if len(found := _several(branches, "switch")) < 2:
            raise BuildError(f"switch has {len(found)} branch. Give it at least 2, or use through.")
        return self.through(Switch(_checked(selector, "switch"), found, masked=masked))

    def map(self, body: Target, batched: bool = False) -> MapBuilder:
        """Apply a body to parts of the stream; say which with each, over or slices."""
        return MapBuilder(self, _checked(body, "map"), batched)

    def label(self, name: str) -> FlowBuilder:
        """Name the graph, so that a parent can address it."""
        self._label = check_name(name, "label")
        return self

    def internal(self, *tags: str) -> FlowBuilder:
        """Hide tags from parent graphs."""
        self._internal |= {check_name(tag, "tag") for tag in tags}
        return self

    def build(self, example: Any = None) -> Graph:
        """Check the chain and give the graph; an `example` input checks every shape without computing."""
        self._check_complete()
        order = in_running_order(self._drafts)
        keys = name_drafts(order)
        check_required(order, keys)
        spec = freeze(
            order,
            keys,
            self._streams[0],
            tagged=self._tagged,
            groups=self._groups,
            internal=self._internal,
            label=self._label,
        )
        modules = {
            key: draft.target for key, draft in zip(keys, order) if isinstance(draft.target, nn.Module)
        }
        graph = Graph(spec, modules, self._initial)
        children: dict[str, list[Any]] = {}
        for _, child in graphs_inside(graph):
            if child.label is not None:
                children.setdefault(child.label, []).append(child)
        check_labels(order, children, self._tagged)
        self._mention_dead_ends(order, keys)
        if example is not None:
            check_shapes(graph, example)
        return graph

    def _check_complete(self) -> None:
        if self._pending:
            names = ", ".join(map(repr, self._pending))
            hint = suggestion(next(iter(self._pending)), self._tagged, known_as="tags")
            raise RefError(
                f"using refers to {names}, which no tag defines. Add the tag, or fix the name. {hint}"
            )
        if len(self._streams) != 1:
            raise BuildError(f"{len(self._streams)} streams are still open. Call merge before build.")
        if unknown := sorted(self._internal - self._tagged.keys()):
            hint = suggestion(unknown[0], self._tagged, known_as="tags")
            raise TagError(f"internal({unknown[0]!r}) hides a tag that does not exist. {hint}")

    def _mention_dead_ends(self, order: list[Draft], keys: list[str]) -> None:
        used = {source for draft in order for source in [*draft.sources, *draft.refs.values()]}
        for draft, key in zip(order, keys):
            if draft.kind not in ("input", "state") and draft not in used:
                if draft is not self._streams[0] and not draft.tags:
                    log.msg("note: nothing reads '%s'. It runs in every call; tag it to read it.", key)

    def _add(self, kind: Kind, prefix: str, **fields: Any) -> Draft:
        draft = Draft(kind, prefix, position=len(self._drafts), **fields)
        self._drafts.append(draft)
        return draft

    def _call(self, target: Target, stream: Draft) -> Draft:
        target = _checked(target, "the builder")
        kind: Kind = getattr(target, "kind") if isinstance(target, Loop | Gate | Switch | Map) else "call"
        return self._add(kind, type_name(target), target=target, sources=[stream])

    def _merged(self, op: Merge, streams: list[Draft], dim: int = -1) -> Draft:
        sources = list(streams)
        if isinstance(op, str):
            if op not in _MERGE_OPS:
                hint = suggestion(op, _MERGE_OPS, known_as="operations")
                raise BuildError(f"merge has no operation {op!r}. {hint} A function works too.")
            prefix = "add" if op == "add" and len(sources) == 2 and len(self._streams) == 1 else "merge"
            merge_op: MergeOp = op  # type: ignore[assignment]
            return self._add("merge", prefix, sources=sources, merge_op=merge_op, merge_dim=dim)
        sequence = takes_one_sequence(_checked(op, "merge"))
        if sequence is None:
            raise BuildError(
                f"merge cannot read the parameters of {type_name(op)}. Wrap it: lambda a, b: {type_name(op)}(a, b)."
            )
        return self._add(
            "merge", "merge", target=op, sources=sources, merge_op="callable", spread=not sequence
        )

    def _flow(self, streams: list[Draft], *, bindable: Sequence[Draft] = ()) -> FlowBuilder:
        self._streams = streams
        self._bindable = list(bindable)
        self._fresh_fork = None
        return self

    def _stream(self, method: str, otherwise: str = "Call merge first") -> Draft:
        if len(self._streams) != 1:
            raise BuildError(f"{method} needs one stream, {len(self._streams)} are open. {otherwise}.")
        return self._streams[0]

    def _check_free(self, name: str) -> None:
        if name in self._tagged:
            raise TagError(
                f"the tag {name!r} exists already, on {self._tagged[name].describe()}. Use another name."
            )
        if name in self._groups:
            raise TagError(f"{name!r} is a tag group already. Use another name.")

    def _name(self, node: Draft, name: str) -> None:
        check_name(name, "tag")
        self._check_free(name)
        self._tagged[name] = node
        if node.kind != "input" or node is self._input:
            node.tags.append(name)
        self._pending.pop(name, None)

    def _bind(self, node: Draft, name: str, init: Initial) -> None:
        accepted = node.accepted()
        if name in node.refs:
            raise RefError(f"{node.describe()} uses {name!r} already. Name each reference once.")
        if not accepted.takes(name):
            raise RefError(_refusal(node, name))
        known = self._tagged.get(name)
        if known is None:
            node.refs[name] = self._carried(node, name, init)
            return
        if init is not None:
            raise RefError(
                f"using({name!r}, init=…): the tag exists already, so its value of this call is used and needs "
                "no first value. Drop init, or call using before tag to carry it."
            )
        if known.kind != "input" and known.position >= node.position:
            raise RefError(
                f"{node.describe()} cannot use {name!r}: that value is made from it, which would be a cycle. "
                "Call using before tag to get the value of the previous call."
            )
        node.refs[name] = known

    def _carried(self, node: Draft, tag: str, init: Initial) -> Draft:
        check_initial(init, tag)
        if tag not in self._pending:
            self._pending[tag] = self._add(
                "state", f"state_{tag}", sources=[node.sources[0], self._input], carries=tag
            )
            if init is not None:
                self._initial[tag] = init
        elif init is not None and init is not self._initial.get(tag):
            raise RefError(f"{tag!r} has two first values. Give init once.")
        return self._pending[tag]

    def _map(self, body: Target, mode: MapMode, count: int, batched: bool, source: Draft) -> FlowBuilder:
        node = self._call(Map(body, mode=mode, count=count, batched=batched), source)
        return self._flow([node], bindable=[node])

    def _loop(self, loop: Loop, stream: Draft) -> FlowBuilder:
        node = self._call(loop, stream)
        return self._flow([node], bindable=[node])


class LoopBuilder:
    """A loop that still needs its end."""

    def __init__(self, flow: FlowBuilder, body: Target, stream: Draft) -> None:
        self._flow, self._body, self._stream = flow, body, stream

    def for_n(self, n: int) -> FlowBuilder:
        """Run the body exactly `n` times."""
        return self._flow._loop(Loop(self._body, turns=_turns(n, "for_n")), self._stream)

    def while_cond(self, cond: Target, max_iter: int, *, masked: bool = False) -> FlowBuilder:
        """Ask before each turn, stop when the condition is above zero: 0 to `max_iter` turns."""
        return self._until(cond, max_iter, "before", masked, "while_cond")

    def until_cond(self, cond: Target, max_iter: int, *, masked: bool = False) -> FlowBuilder:
        """Ask after each turn, stop when the condition is above zero: 1 to `max_iter` turns."""
        return self._until(cond, max_iter, "after", masked, "until_cond")

    def _until(self, cond: Target, max_iter: int, asked: Asked, masked: bool, method: str) -> FlowBuilder:
        turns = _turns(max_iter, method)
        condition = _checked(cond, method)
        loop = Loop(self._body, turns=turns, condition=condition, asked=asked, masked=masked)
        return self._flow._loop(loop, self._stream)

    def __getattr__(self, name: str) -> Any:
        raise BuildError(
            f"the loop has no end yet, before .{name}. Call for_n, while_cond or until_cond first."
        )


class MapBuilder:
    """A map that still needs to know what it maps over."""

    def __init__(self, flow: FlowBuilder, body: Target, batched: bool) -> None:
        self._flow, self._body, self._batched = flow, body, batched

    def each(self) -> FlowBuilder:
        """Map the rows of the stream."""
        return self._flow._map(self._body, "each", 1, self._batched, self._flow._stream("map"))

    def over(self, tag: str) -> FlowBuilder:
        """Map the rows of a tagged value, which becomes the stream."""
        source = self._flow._tagged.get(tag)
        if source is None:
            hint = suggestion(tag, self._flow._tagged, known_as="tags")
            raise RefError(f"map over {tag!r}: there is no such tag so far. {hint}")
        return self._flow._map(self._body, "each", 1, self._batched, source)

    def slices(self, n: int) -> FlowBuilder:
        """Map `n` equal slices of the last dimension."""
        if not isinstance(n, int) or n < 1:
            raise BuildError(f"slices({n!r}): the number of slices is a whole number from 1 up.")
        return self._flow._map(self._body, "slices", n, self._batched, self._flow._stream("map"))

    def __getattr__(self, name: str) -> Any:
        raise BuildError(f"the map has no source yet, before .{name}. Call each, over or slices first.")


def _checked(target: Any, where: str) -> Target:
    if isinstance(target, FlowBuilder | LoopBuilder | MapBuilder):
        raise BuildError(f"{where} got a builder that is not built. Call .build() on it first.")
    if isinstance(target, type):
        raise BuildError(
            f"{where} got the class {target.__name__}, not an instance. Write {target.__name__}(…)."
        )
    if not callable(target):
        raise BuildError(f"{where} got a {type(target).__name__}. Give an nn.Module or a function.")
    return target  # type: ignore[no-any-return]


def _several(targets: Any, method: str) -> list[Target]:
    if isinstance(targets, nn.Module) and not isinstance(targets, nn.ModuleList):
        raise BuildError(f"{method} got one module. Give it a list of modules.")
    return [_checked(target, method) for target in targets]


def _turns(n: int, method: str) -> int:
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise LoopError(
            f"{method} has {n!r} turns. A loop runs at least once: give a whole number from 1 up."
        )
    return n


def _refusal(node: Draft, name: str) -> str:
    accepted = node.accepted()
    receiver = {"gate": "the router of the gate", "switch": "the selector of the switch"}.get(
        node.kind, node.describe()
    )
    if node.kind == "map":
        return (
            f"a map takes no references, so {name!r} cannot be bound to it. Bind it to a node before the map."
        )
    fix = f"Add a keyword parameter {name!r} (or **refs) to its forward, or use another tag."
    if not accepted.readable:
        fix = f"Wrap it in a function with a parameter {name!r}."
    return f"{receiver} takes no reference {name!r}: {accepted.describe()}. {fix}"

"""The fluent builder: a chain of calls that reads like the model it makes."""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import nn

from flodl.core import BuildError, RefError, TagError, log
from flodl.core.paths import check_name, suggestion

from ..control import Gate, Loop, Map, Switch
from ..control.map import MapMode
from ..graph import Graph, Initial, check_initial
from ..plan.signature import takes_one_sequence
from ..plan.spec import Kind, MergeOp
from .continuations import LoopBuilder, MapBuilder
from .draft import (
    Draft,
    Target,
    Unfinished,
    check_required,
    checked,
    freeze,
    in_running_order,
    name_drafts,
    refusal,
    several,
    takes_stream_alone,
    type_name,
)
from .labels import Labels
from .shape_check import check_shapes

Merge = Literal["add", "mean", "mul", "max", "cat"] | Target

_MERGE_OPS = ("add", "mean", "mul", "max", "cat")


class FlowBuilder(Unfinished):
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
        self._labels = Labels()
        self._bindable: list[Draft] = []
        self._fresh_fork: Draft | None = None
        self._open_end: Unfinished | None = None
        self._input = self._add("input", "input")
        self._streams = [self._input]
        if entry is not None:
            self.through(entry)

    def through(self, module: Target) -> FlowBuilder:
        """Send the stream through a module or function."""
        node = self._call(checked(module, "through"), self._stream("through"))
        return self._flow([node], bindable=[node])

    def also(self, module: Target) -> FlowBuilder:
        """Add a module's output to the stream: stream + module(stream)."""
        stream = self._stream("also")
        node = self._call(checked(module, "also"), stream)
        return self._flow([self._merged("add", [stream, node])], bindable=[node])

    def also_with(self, skip: Target, main: Target) -> FlowBuilder:
        """Add two branches of the stream: skip(stream) + main(stream)."""
        stream = self._stream("also_with")
        for branch in (skip, main):
            checked(branch, "also_with")
        self._labels.claim([skip, main], self._tagged)
        skipped, node = self._call(skip, stream), self._call(main, stream)
        return self._flow([self._merged("add", [skipped, node])], bindable=[node])

    def fork(self, module: Target) -> FlowBuilder:
        """Branch off to the side; the stream goes on unchanged. Tag it in the next call to read it."""
        node = self._call(checked(module, "fork"), self._stream("fork"))
        self._flow(self._streams, bindable=[node])
        self._fresh_fork = node
        return self

    def split(self, modules: Sequence[Target] | Mapping[str, Target]) -> FlowBuilder:
        """Send the stream through several modules side by side; a dict also tags each branch by its name."""
        names = list(modules) if isinstance(modules, Mapping) else []
        given = modules.values() if isinstance(modules, Mapping) else modules
        branches = several(given, "split", each="branch", plural="branches")
        stream = self._stream("split")
        self._labels.claim(branches, self._tagged)
        for name in names:
            self._check_free(check_name(name, "tag"))
        nodes = [self._call(module, stream) for module in branches]
        self._flow(nodes, bindable=nodes)
        for name, node in zip(names, nodes):
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
        self._fresh_fork = None
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
                self._check_reference(node, name, init)
        for node in self._bindable:
            for name in names:
                node.refs[name] = self._tagged.get(name) or self._carried(node, name, init)
        return self

    def input(self, *names: str) -> FlowBuilder:
        """Declare further inputs, given by name: `model(x, ctx=c)`; the stream stays as it is."""
        if not names:
            raise BuildError("input() declares nothing. Name the inputs: input('ctx').")
        for name in names:
            check_name(name, "input")
            if not name.isidentifier() or keyword.iskeyword(name) or name in ("input", "self"):
                raise TagError(
                    f"the input {name!r} cannot be a keyword argument. Use another name, such as 'ctx'."
                )
            self._check_free(name)
        if len(set(names)) != len(names):
            raise TagError(f"input({', '.join(map(repr, names))}) declares a name twice. Name each once.")
        for name in names:
            self._name(self._add("input", name), name)
        return self

    def loop_body(self, body: Target) -> LoopBuilder:
        """Start a loop over the stream; say how often with for_n, while_cond or until_cond."""
        self._open_end = LoopBuilder(self, checked(body, "loop_body"), self._stream("loop_body"))
        return self._open_end

    def gate(self, router: Target, experts: Sequence[Target]) -> FlowBuilder:
        """Run every expert and add the outputs, weighed by the router."""
        found = several(experts, "gate", each="expert", plural="experts")
        experts = [takes_stream_alone(expert, "an expert") for expert in found]
        return self._control("gate", Gate(checked(router, "gate"), experts))

    def switch(self, selector: Target, branches: Sequence[Target], *, masked: bool = False) -> FlowBuilder:
        """Run the branch that the selector names, for the batch or for each sample."""
        found = several(branches, "switch", each="branch", plural="branches")
        branches = [takes_stream_alone(branch, "a branch") for branch in found]
        return self._control("switch", Switch(checked(selector, "switch"), branches, masked=masked))

    def map(self, body: Target, batched: bool = False) -> MapBuilder:
        """Apply a body to parts of the stream; say which with each, over or slices."""
        self._stream("map")
        self._open_end = MapBuilder(
            self, takes_stream_alone(checked(body, "map"), "the body of a map"), batched
        )
        return self._open_end

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
        self._mention_dead_ends(order, keys)
        if example is not None:
            check_shapes(graph, example)
        return graph

    def _end(self, ending: Unfinished) -> None:
        """Let a loop or a map that was begun be ended, once."""
        if ending.has_end:
            raise BuildError("this loop or map has its end already. Begin another with loop_body or map.")
        if self._open_end is not ending:
            self._check_ended()
        self._open_end = None

    def _check_ended(self) -> None:
        if isinstance(self._open_end, LoopBuilder):
            raise BuildError("a loop has no end yet. Call for_n, while_cond or until_cond on it first.")
        if self._open_end is not None:
            raise BuildError("a map has no source yet. Call each, over or slices on it first.")

    def _check_complete(self) -> None:
        self._check_ended()
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
            ends_here = draft not in used and draft is not self._streams[0] and not draft.tags
            if ends_here and draft.kind not in ("input", "state"):
                log.warn("note: nothing reads '%s'. It runs in every call; tag it to read it.", key)
            elif draft.kind == "input" and draft not in used and draft is not self._input:
                log.warn("note: nothing reads the input '%s'. Bind it with using, or drop it.", key)

    def _add(self, kind: Kind, prefix: str, **fields: Any) -> Draft:
        draft = Draft(kind, prefix, position=len(self._drafts), **fields)
        self._drafts.append(draft)
        return draft

    def _call(self, target: Target, stream: Draft) -> Draft:
        self._labels.claim([target], self._tagged)
        kind: Kind = target.kind if isinstance(target, Loop | Gate | Switch | Map) else "call"
        return self._add(kind, type_name(target), target=target, sources=[stream])

    def _merged(self, op: Merge, streams: list[Draft], dim: int = -1) -> Draft:
        sources = list(streams)
        if not isinstance(dim, int):
            raise BuildError(f"merge has dim={dim!r}. Give the number of a dimension, such as -1.")
        if isinstance(op, str):
            if op not in _MERGE_OPS:
                hint = suggestion(op, _MERGE_OPS, known_as="operations")
                raise BuildError(f"merge has no operation {op!r}. {hint} A function works too.")
            prefix = "add" if op == "add" and len(sources) == 2 and len(self._streams) == 1 else "merge"
            merge_op: MergeOp = op
            return self._add("merge", prefix, sources=sources, merge_op=merge_op, merge_dim=dim)
        sequence = takes_one_sequence(checked(op, "merge"))
        if sequence is None:
            raise BuildError(
                f"merge cannot read the parameters of {type_name(op)}. Wrap it in a function of the list "
                f"(lambda values: {type_name(op)}(values)) or of the values (lambda a, b: …)."
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
        self._check_ended()
        if len(self._streams) != 1:
            raise BuildError(f"{method} needs one stream, {len(self._streams)} are open. {otherwise}.")
        return self._streams[0]

    def _check_free(self, name: str) -> None:
        if name in self._tagged:
            where = self._tagged[name].describe_kind()
            raise TagError(f"the tag {name!r} exists already, on {where}. Use another name.")
        if name in self._groups:
            raise TagError(f"{name!r} is a tag group already. Use another name.")

    def _name(self, node: Draft, name: str) -> None:
        check_name(name, "tag")
        self._check_free(name)
        self._labels.check_tag(name, node)
        self._tagged[name] = node
        if node.kind != "input" or node is self._input:
            node.tags.append(name)
        self._pending.pop(name, None)

    def _check_reference(self, node: Draft, name: str, init: Initial) -> None:
        if name in node.refs:
            raise RefError(f"{node.describe()} uses {name!r} already. Name each reference once.")
        if not node.accepted().takes(name):
            raise RefError(refusal(node, name))
        known = self._tagged.get(name)
        if known is None:
            check_initial(init, name)
            given = self._initial.get(name)
            if name in self._pending and init is not None and init is not given:
                raise RefError(f"{name!r} has two first values. Give init in its first using alone.")
            return
        if init is not None:
            raise RefError(
                f"using({name!r}, init=…): the tag exists already, so its value of this call is used and "
                "needs no first value. Drop init, or call using before tag to carry it."
            )
        if known.kind != "input" and known.position >= node.position:
            raise RefError(
                f"{node.describe()} cannot use {name!r}: that value is made from it, which would be a cycle. "
                "Call using before tag to get the value of the previous call."
            )

    def _carried(self, node: Draft, tag: str, init: Initial) -> Draft:
        if tag not in self._pending:
            self._pending[tag] = self._add(
                "state", f"state_{tag}", sources=[node.sources[0], self._input], carries=tag
            )
            if init is not None:
                self._initial[tag] = init
        return self._pending[tag]

    def _control(self, method: str, control: Gate | Switch) -> FlowBuilder:
        node = self._call(control, self._stream(method))
        return self._flow([node], bindable=[node])

    def _map(self, body: Target, mode: MapMode, count: int, batched: bool, source: Draft) -> FlowBuilder:
        node = self._call(Map(body, mode=mode, count=count, batched=batched), source)
        return self._flow([node], bindable=[node])

    def _loop(self, loop: Loop, stream: Draft) -> FlowBuilder:
        node = self._call(loop, stream)
        return self._flow([node], bindable=[node])

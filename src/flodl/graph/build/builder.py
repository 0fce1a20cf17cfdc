"""`FlowBuilder`: build a graph with a chain of method calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from flodl.core import BuildError, RefError, TagError
from flodl.core.integers import as_integer
from flodl.core.paths import check_name, suggestion
from flodl.core.usage.calls import BuildCallError, check_flag, explain_creation, explain_methods

from ..control import Gate, Loop, Map, Switch
from ..core import Initial
from ..forward import with_inputs
from ..graph import Graph
from ..plan.outputs import NamedOutputs
from ..plan.spec import Kind, MergeOp
from .continuations import LoopBuilder, Make, MapBuilder
from .draft import (
    Draft,
    Target,
    Unfinished,
    check_no_references,
    check_one_argument,
    check_required,
    check_target,
    check_targets,
    execution_order,
    freeze,
    name_drafts,
    no_such_method,
    type_name,
)
from .gates import make_gate
from .labels import Labels
from .merging import check_merge, takes_values_one_by_one
from .names import check_child_name, check_initial_names, check_input_name, check_one_by_one
from .notes import check_in_place, note_one_module, note_second_build, note_unread
from .outputs import check_all_returned, check_first_outputs, check_outputs
from .references import check_own_tag, check_reference
from .shape_check import check_shapes

Merge = Literal["add", "mean", "mul", "max", "cat"] | Target

_MERGE_OPS = ("add", "mean", "mul", "max", "cat")


_EXAMPLES = {
    "also": "Write also(module).",
    "also_with": "Write also_with(skip, main), or also(main) for stream + main(stream).",
    "fork": "Write fork(module).",
    "gate": "Write gate(router, [first, second]).",
    "label": "Write label('encoder').",
    "loop_body": "Write loop_body(body).for_n(3).",
    "map": "Write map(body).each().",
    "merge": "Write merge('cat', dim=-1), or merge('add').",
    "split": "Write split([first, second]).",
    "switch": "Write switch(selector, [first, second]).",
    "tag": "Write tag('hidden').",
    "tag_group": "Write tag_group('head').",
    "through": "Write through(module).",
}


@explain_methods(BuildCallError, examples=_EXAMPLES)
@explain_creation(BuildCallError, example="Write FlowBuilder(first).through(second).build().")
class FlowBuilder(Unfinished):
    """Build a `Graph` by following the stream: each call adds a node and returns the builder.

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

    def __init__(self, entry: Target | None = None, *more: Target, input: str | None = None) -> None:
        check_one_argument("FlowBuilder", more, "FlowBuilder(first).through(second)")
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
        self._unclosed: Unfinished | None = None
        self._was_built = False
        if input == "input":
            input = None
        self._input = self._add("input", "input" if input is None else check_input_name(input))
        if input is not None:
            self._tagged[input] = self._input
        self._streams = [self._input]
        if entry is not None:
            self.through(check_target(entry, "FlowBuilder"))

    def through(self, module: Target, *more: Target) -> FlowBuilder:
        """Send the stream through a module or function."""
        check_one_argument("through", more, "through(first).through(second)")
        node = self._call(check_target(module, "through"), self._stream("through"))
        return self._flow([node], bindable=[node])

    def also(self, module: Target) -> FlowBuilder:
        """Add a module's output to the stream: stream + module(stream)."""
        stream = self._stream("also")
        node = self._call(check_target(module, "also"), stream)
        return self._flow([self._merged("add", [stream, node])], bindable=[node])

    def also_with(self, skip: Target, main: Target) -> FlowBuilder:
        """Add two branches of the stream: skip(stream) + main(stream)."""
        stream = self._stream("also_with")
        for branch in (skip, main):
            check_target(branch, "also_with")
        self._labels.claim([skip, main], self._tagged)
        skipped, node = self._call(skip, stream), self._call(main, stream)
        return self._flow([self._merged("add", [skipped, node])], bindable=[node])

    def fork(self, module: Target) -> FlowBuilder:
        """Add a side branch; the stream does not change. Tag the branch in the next call to read it."""
        node = self._call(check_target(module, "fork"), self._stream("fork"))
        self._flow(self._streams, bindable=[node])
        self._fresh_fork = node
        return self

    def split(
        self, modules: Sequence[Target] | Mapping[str, Target] | nn.ModuleDict, *more: Target
    ) -> FlowBuilder:
        """Send the stream through several modules in parallel; a dict also tags each branch with its key."""
        check_one_argument("split", more, "split([first, second])")
        modules = dict(modules.items()) if isinstance(modules, nn.ModuleDict) else modules
        names = list(modules) if isinstance(modules, Mapping) else []
        targets = modules.values() if isinstance(modules, Mapping) else modules
        branches = check_targets(targets, "split", each="branch", plural="branches")
        stream = self._stream("split")
        self._labels.claim(branches, self._tagged)
        for name in names:
            self._check_free(check_child_name(name, "tag"))
        nodes = [self._call(module, stream) for module in branches]
        self._flow(nodes, bindable=nodes)
        for name, node in zip(names, nodes):
            self._name(node, name)
        note_one_module(branches, "split", "branches")
        return self

    def merge(self, op: Merge, dim: int = -1) -> FlowBuilder:
        """Merge the open streams with add, mean, mul, max, cat (along `dim`) or your own function.

        A function with one parameter gets the list of values; with several, it gets them one by one.
        """
        if len(self._streams) < 2:
            raise BuildError("merge needs several open streams, but there is one. Call split before merge.")
        return self._flow([self._merged(op, self._streams, dim)])

    def tag(self, name: str) -> FlowBuilder:
        """Name the last value, so that you can read it, refer to it and address its node."""
        node = self._fresh_fork or self._stream("tag", "Use tag_group, or merge first")
        self._name(node, name)
        self._fresh_fork = None
        return self

    def tag_group(self, name: str) -> FlowBuilder:
        """Name all open streams at once: `name_0`, `name_1`, …"""
        check_name(name, "tag group")
        if len(self._streams) < 2:
            raise TagError(
                f"tag_group({name!r}) needs several open streams, but there is one. Use tag({name!r})."
            )
        if name in self._groups or name in self._tagged:
            raise TagError(
                f"{name!r} is already a {'group' if name in self._groups else 'tag'}. Use a different name."
            )
        members = tuple(f"{name}_{position}" for position in range(len(self._streams)))
        for member in members:
            self._check_free(check_child_name(member, "tag"))
        for member, node in zip(members, self._streams):
            self._name(node, member)
        self._groups[name] = members
        return self

    def using(self, *names: str, init: Initial = None, **renamed: str) -> FlowBuilder:
        """Pass tagged values to the last node, as keyword arguments with the names of the tags.

        `using(key="memory")` passes the tag `memory` as the parameter `key`.

        A tag that does not exist yet is carried: the node gets its value of the previous call, and in the
        first call `init` (None, "zeros", a tensor, a parameter to learn, or a function of the stream).
        """
        if not self._bindable:
            raise RefError(
                "using has no node to bind to: a sum, a merge and the input take no references. "
                "Call it right after through, also, fork, split, a loop, a gate or a switch."
            )
        bound = [*zip(names, names), *renamed.items()]
        for _, tag in bound:
            check_own_tag(tag, "using")
        if len(dict(bound)) != len(bound):
            raise RefError(f"using({', '.join(map(repr, names))}) names a tag twice. Name each tag once.")
        for node in self._bindable:
            for parameter, tag in bound:
                check_reference(node, parameter, tag, init, self._tagged, self._initial, self._pending)
        for node in self._bindable:
            for parameter, tag in bound:
                node.refs[parameter] = self._tagged.get(tag) or self._carried(node, tag, init)
        return self

    def input(self, *names: str) -> FlowBuilder:
        """Declare further inputs, passed by name: `model(x, ctx=c)`. The stream does not change."""
        if not names:
            raise BuildError("input() declares nothing. Name the inputs: input('ctx').")
        check_one_by_one("input", names)
        for name in names:
            self._check_free(check_input_name(name))
            if name in self._pending:
                raise RefError(
                    f"using({name!r}) comes before input({name!r}), so it would read the value of the "
                    f"previous call. Call input({name!r}) first, right after FlowBuilder(…)."
                )
        if len(set(names)) != len(names):
            raise TagError(f"input({', '.join(map(repr, names))}) declares a name twice. Name each once.")
        for name in names:
            self._name(self._add("input", name), name)
        return self

    def output(self, *names: str, **renamed: str) -> FlowBuilder:
        """Return several tagged values, as a dict with the names of the tags: `output("logits", "value")`.

        `output(scores="logits")` returns the tag `logits` under the name `scores`. Call it last.
        """
        bound = check_outputs(names, renamed, self._tagged)
        self._check_closed()
        check_first_outputs(bound, self._streams)
        open_streams = self._streams if len(self._streams) > 1 else []
        check_all_returned(open_streams, [self._tagged[tag] for _, tag in bound])
        function = NamedOutputs(tuple(name for name, _ in bound))
        sources = [self._tagged[tag] for _, tag in bound]
        node = self._add("merge", "outputs", target=function, sources=sources, merge_op="callable")
        return self._flow([node])

    def loop_body(self, body: Target) -> LoopBuilder[FlowBuilder]:
        """Start a loop over the stream; for_n, while_cond or until_cond must follow."""
        body = check_target(body, "loop_body")
        self._stream("loop_body")
        loop = LoopBuilder[FlowBuilder](body, self._close)
        self._unclosed = loop
        return loop

    def gate(
        self,
        router: Target,
        experts: Sequence[Target],
        *more: Target,
        top_k: int | None = None,
        masked: bool = False,
        weights: str | None = None,
    ) -> FlowBuilder:
        """Run every expert and sum the outputs, weighted by the router.

        With `top_k`, only the experts with the largest weights run, each on the rows that are routed to it
        (`masked=True`: on all rows, without a host sync). `weights` makes the router a node with this tag, so
        that its output can be read, for example for a load balancing loss.
        """
        check_one_argument("gate", more, "gate(router, [first, second])")
        check_flag("gate", "masked", masked, BuildCallError)
        found = check_targets(experts, "gate", each="expert", plural="experts")
        experts = [check_no_references(expert, "an expert") for expert in found]
        gate = make_gate(check_target(router, "gate"), experts, top_k, masked, is_named=weights is not None)
        stream = self._stream("gate")
        if weights is None:
            flow = self._control("gate", gate)
        else:
            self._check_free(check_child_name(weights, "tag"))
            routed = self._call(router, stream)
            self._name(routed, weights)
            node = self._call(gate, stream)
            node.refs["weights"] = routed
            flow = self._flow([node], bindable=[routed])
        note_one_module(experts, "gate", "experts")
        return flow

    def switch(
        self, selector: Target, branches: Sequence[Target], *more: Target, masked: bool = False
    ) -> FlowBuilder:
        """Run the branch that the selector chooses, for the batch or for each sample."""
        check_one_argument("switch", more, "switch(selector, [first, second])")
        check_flag("switch", "masked", masked, BuildCallError)
        found = check_targets(branches, "switch", each="branch", plural="branches")
        branches = [check_no_references(branch, "a branch") for branch in found]
        flow = self._control("switch", Switch(check_target(selector, "switch"), branches, masked=masked))
        note_one_module(branches, "switch", "branches")
        return flow

    def map(self, body: Target, batched: bool = False) -> MapBuilder[FlowBuilder]:
        """Apply a body to parts of the stream; each, over or slices must follow."""
        self._stream("map")
        check_flag("map", "batched", batched, BuildCallError)
        body = check_no_references(check_target(body, "map"), "the body of a map")
        mapping = MapBuilder[FlowBuilder](body, batched, self._tagged, self._close)
        self._unclosed = mapping
        return mapping

    def label(self, name: str) -> FlowBuilder:
        """Name the graph, so that a parent graph can address it."""
        self._label = check_child_name(name, "label")
        return self

    def internal(self, *tags: str) -> FlowBuilder:
        """Hide tags from parent graphs."""
        self._internal |= {check_name(tag, "tag") for tag in tags}
        return self

    def build(self, example: Any = None) -> Graph:
        """Check the chain and return the graph; with an `example` input, also check every shape."""
        self._check_complete()
        order = execution_order(self._drafts)
        keys = name_drafts(order)
        check_required(order, keys)
        check_in_place(order, keys, self._streams[0])
        check_initial_names((tag for tag, value in self._initial.items() if isinstance(value, Tensor)), keys)
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
        graph: Graph = with_inputs(Graph, spec.all_input_names)(spec, modules, self._initial)
        note_unread(order, keys, self._streams[0], self._input)
        if self._was_built:
            note_second_build()
        self._was_built = True
        if example is not None:
            check_shapes(graph, example)
        return graph

    def _close(self, unfinished: Unfinished, make: Make) -> FlowBuilder:
        """Add the loop or map that `make` returns; if `make` raises, the chain does not change."""
        if unfinished.is_closed:
            raise BuildError("this loop or map is already complete. Start another with loop_body or map.")
        if self._unclosed is not unfinished:
            self._check_closed()
        self._unclosed = None
        control, source = make()
        stream = self._stream(control.kind)
        unfinished.is_closed = True
        node = self._call(control, source or stream)
        return self._flow([node], bindable=[node])

    def _check_closed(self) -> None:
        if isinstance(self._unclosed, LoopBuilder):
            raise BuildError("a loop has no end yet. Call for_n, while_cond or until_cond on it first.")
        if self._unclosed is not None:
            raise BuildError("a map has no source yet. Call each, over or slices on it first.")

    def _check_complete(self) -> None:
        self._check_closed()
        if self._pending:
            names = ", ".join(map(repr, self._pending))
            hint = suggestion(next(iter(self._pending)), self._tagged, known_as="tags")
            raise RefError(
                f"using refers to {names}, but no tag has this name. Add the tag, or fix the name. {hint}"
            )
        if len(self._streams) != 1:
            raise BuildError(f"{len(self._streams)} streams are still open. Call merge before build.")
        if unknown := sorted(self._internal - self._tagged.keys()):
            hint = suggestion(unknown[0], self._tagged, known_as="tags")
            raise TagError(f"internal({unknown[0]!r}) hides a tag that does not exist. {hint}")

    def __getattr__(self, name: str) -> Any:
        raise no_such_method(name, Graph, [method for method in vars(FlowBuilder) if method[0] != "_"])

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
        dim = as_integer(dim)
        check_merge(op, dim, _MERGE_OPS)
        if isinstance(op, str):
            prefix = "add" if op == "add" and len(sources) == 2 and len(self._streams) == 1 else "merge"
            merge_op: MergeOp = op
            return self._add("merge", prefix, sources=sources, merge_op=merge_op, merge_dim=dim)
        spread = takes_values_one_by_one(op, len(sources))
        return self._add("merge", "merge", target=op, sources=sources, merge_op="callable", spread=spread)

    def _flow(self, streams: list[Draft], *, bindable: Sequence[Draft] = ()) -> FlowBuilder:
        self._streams = streams
        self._bindable = list(bindable)
        self._fresh_fork = None
        return self

    def _stream(self, method: str, otherwise: str = "Call merge first") -> Draft:
        self._check_closed()
        if len(self._streams) != 1:
            raise BuildError(f"{method} needs one stream, but {len(self._streams)} are open. {otherwise}.")
        return self._streams[0]

    def _check_free(self, name: str) -> None:
        if name in self._tagged:
            where = self._tagged[name].describe_kind()
            raise TagError(f"the tag {name!r} already exists, on {where}. Use a different name.")
        if name in self._groups:
            raise TagError(f"{name!r} is already a tag group. Use a different name.")

    def _name(self, node: Draft, name: str) -> None:
        is_declared = node.kind == "input" and node is not self._input
        if not is_declared:  # a declared input is not a module
            check_child_name(name, "tag")
        self._check_free(name)
        self._labels.check_tag(name, node)
        self._tagged[name] = node
        if not is_declared:
            node.tags.append(name)
        self._pending.pop(name, None)

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

"""`GraphCore`: the `nn.Module` that runs a spec and keeps the values of the last call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from flodl.core import BuildError, InputError, PathError, StateError, log
from flodl.core.paths import nearest, suggestion
from flodl.core.usage.calls import GraphCallError, explain_methods
from flodl.core.usage.tracebacks import hide_own_frames
from flodl.observe import CarriedValues, unshared

from .control.control import Control, explain_tracing
from .control.traces import Traces
from .first_calls import FirstCalls, Original
from .forward import naming, of_class, rebuild
from .plan.codegen import Source, bind, generate
from .plan.error_path import describe_value, one_line_repr, path_of_error, prepend_path
from .plan.exporting import is_exporting
from .plan.first_values import add_first_value_advice
from .plan.memory import Memory, restore_all_where
from .plan.outputs import NamedOutputs
from .plan.overwriting import watched
from .plan.shapes import MergeShapeError, explain_cat
from .plan.signature import Accepts, method
from .plan.spec import Spec
from .plan.tuple_advice import add_tuple_advice

Initial = Any
# This string enters the structural hash, so it must not change.
_STORED = "held as a parameter or buffer"
_NO_INPUT: Any = object()


# A loop reads the published values in every iteration.
@explain_methods(GraphCallError, without=("forward", "published_values"))
class GraphCore(nn.Module):
    """Run a spec: bind its nodes to modules, call them in order, and remember tagged and carried values.

    Everything else that a `Graph` can do (paths, metrics, pictures, checkpoints) builds on this class.
    """

    def __init__(
        self, spec: Spec, modules: Mapping[str, nn.Module], initial: Mapping[str, Initial] | None = None
    ) -> None:
        super().__init__()
        self._spec = spec
        self._memory = Memory(len(spec.tags), len(spec.carried))
        self._keeps_tags = True
        self._stopwatch: Any = None
        self._initial = {tag: _without_tensor(value) for tag, value in (initial or {}).items()}
        self._num_inputs = 1 + len(spec.input_names)
        self._noted: frozenset[str] = frozenset()
        self._modules.update(modules)
        for tag, value in (initial or {}).items():
            if isinstance(value, nn.Parameter):
                self._parameters[f"{tag}_init"] = value
            elif isinstance(value, Tensor):
                self._buffers[f"{tag}_init"] = value
        self._first_calls = FirstCalls(self, spec, self._initial)
        self._replan()

    @property
    def spec(self) -> Spec:
        """The frozen description of this graph."""
        return self._spec

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs, in the order of `forward`: the stream, then the declared ones."""
        return self._spec.all_input_names

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs that `output` declared; empty if the graph returns a single value."""
        function = self._spec.nodes[self._spec.output].function
        return function.names if isinstance(function, NamedOutputs) else ()

    @property
    def label(self) -> str | None:
        """The name of this graph inside a parent graph."""
        return self._spec.label

    @property
    def code(self) -> str:
        """The generated Python source of the forward."""
        return self._source.text

    @property
    def keeps_tags(self) -> bool:
        """Whether tagged values stay alive after a call; if not, they are freed like all others."""
        return self._keeps_tags

    @keeps_tags.setter
    def keeps_tags(self, keep: bool) -> None:
        for graph in self._graphs():
            graph._keeps_tags = keep
            graph._memory.forget_tags()
            graph._replan()

    def forward(self, input: Any = _NO_INPUT, /, *others: Any, **named: Any) -> Any:
        if others or named or self._num_inputs != 1:
            inputs = self._ordered(input, others, named)
            if inputs is None:
                raise self._wrong_inputs(len(others) + (input is not _NO_INPUT), named)
            input, others = inputs[0], inputs[1:]
        elif input is _NO_INPUT:
            raise self._wrong_inputs(0, named)
        program = self._program
        if not torch.compiler.is_dynamo_compiling():
            try:
                # Other code may replace modules in the table (quantization does). Dynamo guards the table
                # itself.
                if [*self._modules.values()] != self._bound:
                    self._rebind()
                    self._first_calls.restart(self)
                    program = self._program
                if self._first_calls.are_due[self.training] and self._first_calls.check(self):
                    wrapped = watched(self._spec, self._targets(), keep_tags=self._keeps_tags)
                    program = bind(self._source, wrapped)
            except BaseException as error:
                hide_own_frames(error)
                raise
        try:
            return program(self, input, *others)
        except Exception as error:
            forget_failed_call(self.modules())
            clearer = self._add_error_path(error, error.__traceback__)
            if clearer is None and self._spec.carried:
                tags = [str(self._spec.nodes[reader].carries) for reader, _ in self._spec.carried]
                clearer = self._memory.explain(error, tags, input, path_of_error(error)[0])
            hide_own_frames(error)
            if clearer is not None:
                raise clearer from error
            raise

    def reset_state(self) -> None:
        """Drop the carried values of this graph and of everything inside it."""
        reset_modules(self.modules())

    def detach_state(self) -> None:
        """Detach the values that this graph and everything inside it keep from the autograd graph."""
        detach_modules(self.modules())

    def keep_state(self) -> Callable[[Tensor], None]:
        """Return a function of a flag that restores the values carried now where the flag is set."""
        return partial(
            restore_all_where, [(graph._memory, graph._memory.snapshot()) for graph in self._graphs()]
        )

    @property
    def has_state(self) -> bool:
        """Whether this graph, or one inside it, carries values from one call to the next."""
        return any(graph._spec.carried for graph in self._graphs())

    @property
    def carried_values(self) -> CarriedValues | None:
        """Where this graph keeps the values that it carries itself; None if it carries none."""
        return self._memory if self._spec.carried else None

    def accepted_refs(self) -> Accepts:
        """Return the declared inputs: the references that this graph accepts inside a parent."""
        return Accepts(self._spec.input_names, self._spec.input_names)

    def published_values(self) -> Iterator[tuple[str, Any]]:
        """Yield the tagged values that a loop around this graph records for each iteration."""
        if self._keeps_tags:
            for (name, _), value in zip(self._spec.tags, self._memory.stored):
                if name not in self._spec.internal_tags:
                    yield name, value

    def target(self, key: str) -> Callable[..., Any]:
        """Return the module or function of a node."""
        if not isinstance(key, str) or key not in self._spec.key_index:
            hint = suggestion(str(key)[:60], self._spec.key_index, known_as="nodes")
            raise PathError(f"there is no node {key!r:.60}. {hint}")
        module = self._modules.get(key)
        if module is not None:
            return module
        function = self._spec.nodes[self._spec.key_index[key]].function
        assert function is not None
        return function

    def _graphs(self) -> Iterator[GraphCore]:
        return (module for module in self.modules() if isinstance(module, GraphCore))

    def _replan(self, *, timed: bool = False) -> None:
        self._source: Source = generate(self._spec, keep_tags=self._keeps_tags, timed=timed)
        self._rebind()

    def _rebind(self) -> None:
        for node in self._spec.nodes:
            if node.has_module and self._modules.get(node.key) is None:
                raise BuildError(
                    "the module of this node was deleted. Assign a module to it again.", path=node.key
                )
        self._program = bind(self._source, self._targets())
        self._bound = [*self._modules.values()]
        self._note_modules_without_node()

    def _targets(self) -> dict[str, Callable[..., Any]]:
        return {key: self.target(key) for _, key in self._source.bound}

    def _note_modules_without_node(self) -> None:
        """Log once that a module was assigned to a name that is not a node: the forward does not call it."""
        names = frozenset(self._modules) - self._spec.key_index.keys() - self._noted
        for name in sorted(names):
            module = self._modules[name]
            if module is not None and any(True for _ in module.parameters()):
                known = [node.key for node in self._spec.nodes if node.has_module]
                log.warn(
                    "note: '%s' is not a node of this graph, so the forward does not call the module that "
                    "was assigned to it. To replace a node, assign to its name. %s",
                    name,
                    suggestion(name, known, known_as="nodes"),
                )
        self._noted |= names

    def _modules_inside(self) -> list[nn.Module]:
        """Return the modules inside, without this graph itself, which would be a reference cycle."""
        return [module for module in self.modules() if module is not self]

    def _recall(self, position: int, stream: Any, graph_input: Any) -> Any:
        """Return a carried value, or its initial value in the first call. Called by the generated code."""
        # An exported program has no memory, so it begins with the initial values.
        value = None if is_exporting() else self._memory.carried[position]
        reader, _ = self._spec.carried[position]
        tag = self._spec.nodes[reader].carries
        assert tag is not None
        if value is not None:
            self._memory.check_batch(tag, value, graph_input)
            if torch.compiler.is_compiling():
                return value
            self._memory.note_used_history(tag)
            return unshared(value)
        first = self._initial.get(tag)
        if first == _STORED:
            return _expand_to_batch(getattr(self, f"{tag}_init"), stream)
        if first == "zeros":
            return torch.zeros_like(stream)
        return first(stream) if callable(first) else None

    def _carry(self, values: tuple[Any, ...], graph_input: Any) -> None:
        """Store the carried values and the batch size. Called by the generated code."""
        self._memory.carried = values
        has_batch = isinstance(graph_input, Tensor) and graph_input.dim() > 0
        self._memory.batch = graph_input.shape[0] if has_batch else None
        if not torch.compiler.is_compiling():
            self._memory.watch_history()

    def _ordered(self, input: Any, others: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...] | None:
        """Return all inputs in the order of their declaration; None if they are not those of the graph."""
        given = others if input is _NO_INPUT else (input, *others)
        missing = self._spec.all_input_names[len(given) :]
        if (
            len(missing) == len(named)
            and len(given) <= self._num_inputs
            and all(name in named for name in missing)
        ):
            return (*given, *(named[name] for name in missing))
        return None

    def _wrong_inputs(self, by_position: int, named: dict[str, Any]) -> InputError:
        first = "x" if self.input_names[0] == "input" else self.input_names[0]
        wanted = ", ".join([first, *(f"{name}=…" for name in self._spec.input_names)])
        got = f"{by_position} by position" + (f" and {', '.join(named)} by name" if named else "")
        return InputError(
            f"the graph takes {self._num_inputs} input{'s' * (self._num_inputs != 1)}, got {got}. "
            f"Call it as model({wanted}).{_misspelled(named, self.input_names)}"
        )

    def _add_error_path(self, error: Exception, traceback: TracebackType | None) -> Exception | None:
        """Add the key of the node that raised to the path of the error; return a clearer error, if any."""
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == self._source.filename:
                index = self._source.node_at_line.get(traceback.tb_lineno)
                if index is not None:
                    clearer = self._add_node(error, index, traceback.tb_frame.f_locals)
                    add_tuple_advice(error, self._given(index, traceback.tb_frame.f_locals))
                    add_first_value_advice(error, self._first_values(index, traceback.tb_frame.f_locals))
                    return clearer
                return None
            traceback = traceback.tb_next
        return None

    def _given(self, index: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a node got from other nodes, by their keys."""
        sources = {source: self._spec.nodes[source] for source in self._spec.nodes[index].inputs}
        names = self._source.names
        return {one.key: values.get(names[at]) for at, one in sources.items() if one.kind != "input"}

    def _first_values(self, index: int, values: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
        """Yield the carried tags that a node reads in the first call, with their `init` and their values."""
        if any(one is not None for one in self._memory.carried):
            return
        for source in self._spec.nodes[index].inputs:
            if (tag := self._spec.nodes[source].carries) is not None:
                yield tag, self._initial.get(tag), values.get(self._source.names[source])

    def _add_node(self, error: Exception, index: int, values: Mapping[str, Any]) -> Exception | None:
        node = self._spec.nodes[index]
        target = self._modules.get(node.key)
        if isinstance(target, Control | GraphCore):
            if (clearer := explain_tracing(error, target)) is not None:
                return clearer.under(node.key)
            prepend_path(error, node.key)
            return None
        sources = [self._spec.nodes[source].key for source in node.sources]
        if isinstance(error, MergeShapeError):
            error.name_values(sources)
            prepend_path(error, node.key)
            return None
        given = [values.get(self._source.names[source]) for source in node.inputs]
        if node.merge_op == "cat" and (clearer := explain_cat(given, sources, node.merge_dim)) is not None:
            return clearer.under(node.key)
        inputs = ", ".join(map(describe_value, given))
        module = "" if target is None else one_line_repr(target) + ", "
        a_list = "" if node.spread else "the list "
        prepend_path(error, node.key, f"{module}given {a_list}{inputs}")
        return None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._memory.move(fn)
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        cls, names = of_class(type(self))
        return (rebuild, (cls, names), self.__getstate__()) if names else super().__reduce_ex__(protocol)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_program"], state["_source"], state["_stopwatch"], state["_bound"]
        # A copy checks in its first call that it does not use modules of the original.
        state["_first_calls"] = self._first_calls.original or Original(self)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        original = state.pop("_first_calls", Original())
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.__dict__.setdefault("_noted", frozenset())
        self._stopwatch = None
        self._first_calls = FirstCalls(self, self._spec, self._initial, original=original)
        self._replan()


GraphCore.forward = naming(("input",), GraphCore.forward)  # type: ignore[method-assign]


def reset_modules(modules: Iterable[nn.Module]) -> None:
    """Drop the carried values of graphs, and call `reset_state` of other modules that have it."""
    for module in modules:
        if isinstance(module, GraphCore):
            module._memory.reset()
        elif reset := method(module, "reset_state"):
            reset()


def detach_modules(modules: Iterable[nn.Module]) -> None:
    """Detach what graphs and loops keep, and call `detach_state` of other modules that have it."""
    for module in modules:
        if isinstance(module, GraphCore):
            module._memory.detach()
        elif isinstance(traces := getattr(module, "traces", None), Traces):
            traces.detach()
        elif detach := method(module, "detach_state"):
            detach()


def forget_failed_call(modules: Iterable[nn.Module]) -> None:
    """Drop what graphs and loops keep of their last call, because it raised an error."""
    # A checkpointed part of a model ends its recomputation, in the backward, with an exception.
    if torch._C._current_graph_task_id() != -1:
        return
    for module in modules:
        if isinstance(module, GraphCore):
            module._memory.forget_failed_call()
        elif isinstance(traces := getattr(module, "traces", None), Traces):
            traces.forget_failed_call()


def check_initial(value: Initial, tag: str) -> Initial:
    """Raise if a value cannot be the initial value of a carried tag."""
    if value is None or isinstance(value, Tensor) or callable(value) or value == "zeros":
        return value
    raise StateError(
        f"init={value!r} for {tag!r}. Use None, 'zeros', a tensor, a parameter to learn, or a function "
        "of the stream."
    )


def _without_tensor(value: Initial) -> Initial:
    return _STORED if isinstance(value, Tensor) else value


def _expand_to_batch(value: Tensor, stream: Any) -> Tensor:
    """Expand an initial value whose first dimension is 1 to the batch size."""
    if value.dim() > 1 and value.shape[0] == 1 and isinstance(stream, Tensor) and stream.dim() > 0:
        return value.expand(stream.shape[0], *value.shape[1:])
    return value


def _misspelled(given: Iterable[str], known: tuple[str, ...]) -> str:
    """Return the input that was probably meant by another name, or ""."""
    for name in given:
        if name not in known and (close := nearest(name, known, limit=1)):
            return f" {name!r} is not an input: did you mean {close[0]!r}?"
    return ""

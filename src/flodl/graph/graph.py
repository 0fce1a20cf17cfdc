"""The graph itself: an `nn.Module` that runs a plan and remembers what it was asked to remember."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flodl.core import BuildError, InputError, StateError
from flodl.observe import Book

from .checkpointing import Saved
from .control.control import Control
from .control.traces import Traces
from .drawing import Pictured
from .hashing.hashes import structural_hash, weights_hash
from .metrics import Observed
from .plan.codegen import Source, bind, generate
from .plan.error_path import climb, one_line, shape_of
from .plan.memory import Memory, take_back_where
from .plan.signature import Accepts, method
from .plan.spec import Spec
from .tree import Tree

Initial = Any
_HELD = "held as a parameter or buffer"


class Graph(Tree, Observed, Pictured, Saved, nn.Module):
    """A model built by `FlowBuilder`: call it, look at it, address its parts by dotted paths.

    >>> from flodl import FlowBuilder
    >>> model = FlowBuilder(nn.Linear(2, 8)).through(nn.GELU()).tag("hidden").through(nn.Linear(8, 1)).build()
    >>> model(torch.zeros(3, 2)).shape, model.tagged("hidden").shape
    (torch.Size([3, 1]), torch.Size([3, 8]))
    >>> [name for name, _ in model.named_parameters()]
    ['linear_1.weight', 'linear_1.bias', 'linear_2.weight', 'linear_2.bias']
    """

    def __init__(
        self, spec: Spec, modules: Mapping[str, nn.Module], initial: Mapping[str, Initial] | None = None
    ) -> None:
        super().__init__()
        self._spec = spec
        self._memory = Memory(len(spec.tags), len(spec.carried))
        self._book = Book()
        self._keeps_tags = True
        self._stopwatch: Any = None
        self._initial = {tag: _held(value) for tag, value in (initial or {}).items()}
        self._num_inputs = 1 + len(spec.input_names)
        # Straight into the table: a tag may be called like a method of this class ("train", "profile").
        self._modules.update(modules)
        for tag, value in (initial or {}).items():
            if isinstance(value, nn.Parameter):
                self._parameters[f"{tag}_init"] = value
            elif isinstance(value, Tensor):
                self._buffers[f"{tag}_init"] = value
        self._replan()
        self._take_hash()

    @property
    def spec(self) -> Spec:
        """The frozen description that this graph was planned from."""
        return self._spec

    @property
    def label(self) -> str | None:
        """The name of this graph among the children of another."""
        return self._spec.label

    @property
    def code(self) -> str:
        """The Python text of the forward, as it runs."""
        return self._source.text

    @property
    def keeps_tags(self) -> bool:
        """Whether tagged values stay alive after a call; off, they are freed like all others."""
        return self._keeps_tags

    @keeps_tags.setter
    def keeps_tags(self, keep: bool) -> None:
        for graph in self._graphs():
            graph._keeps_tags = keep
            graph._memory.forget_tags()
            graph._replan()

    @property
    def structural_hash(self) -> str:
        """Equal for graphs that compute the same function of input and weights, whatever their names.

        It describes the graph as it was built, or as a node was last replaced.
        """
        if self._parts() != self._hashed:
            self._take_hash()
        return self._hash

    @property
    def weights_hash(self) -> str:
        """Equal for graphs that can load each other's weights."""
        return weights_hash(self)

    def forward(self, input: Any, /, *others: Any, **named: Any) -> Any:
        if others or named or self._num_inputs != 1:
            others = self._ordered(others, named)
        # The table of modules can be changed behind our back (quantisation does); Dynamo guards it itself.
        if not torch.compiler.is_dynamo_compiling() and [*self._modules.values()] != self._bound:
            self._rebind()
        try:
            return self._program(self, input, *others)
        except Exception as error:
            self._blame(error, error.__traceback__)
            raise

    def reset_state(self, path: str | None = None) -> None:
        """Forget what was carried between calls, everywhere below; modules with `reset_state` join in."""
        for module in self._stateful(path):
            if isinstance(module, Graph):
                module._memory.reset()
            elif own := method(module, "reset_state"):
                own()

    def detach_state(self, path: str | None = None) -> None:
        """Cut the autograd history of what was carried, tagged or traced, keeping the values."""
        for module in self._stateful(path):
            if isinstance(module, Graph):
                module._memory.detach()
            elif isinstance(traces := getattr(module, "traces", None), Traces):
                traces.detach()
            elif own := method(module, "detach_state"):
                own()

    def keep_state(self) -> Callable[[Tensor], None]:
        """Give a function of a flag that, where it is set, takes back what is carried from here on."""
        return partial(take_back_where, [(graph._memory, graph._memory.kept()) for graph in self._graphs()])

    @property
    def has_state(self) -> bool:
        """Whether this graph, or one inside it, carries values from one call to the next."""
        return any(graph._spec.carried for graph in self._graphs())

    def accepted_refs(self) -> Accepts:
        """Give the declared inputs: the references that this graph takes inside another."""
        return Accepts(self._spec.input_names, self._spec.input_names)

    def published_values(self) -> Iterator[tuple[str, Any]]:
        """Give the tagged values that a loop around this graph keeps for each turn."""
        if self._keeps_tags:
            for (name, _), value in zip(self._spec.tags, self._memory.tag_values):
                if name not in self._spec.internal_tags:
                    yield name, value

    def target(self, key: str) -> Callable[..., Any]:
        """Give the module or function behind a node."""
        module = self._modules.get(key)
        if module is not None:
            return module
        function = self._spec.nodes[self._spec.key_index[key]].function
        assert function is not None
        return function

    def _graphs(self) -> Iterator[Graph]:
        return (module for module in self.modules() if isinstance(module, Graph))

    def _stateful(self, path: str | None) -> Iterator[nn.Module]:
        if path is None:
            yield from self.modules()
            return
        seen: set[int] = set()
        for module in self.modules_at(path):
            for inner in module.modules():
                if id(inner) not in seen:
                    seen.add(id(inner))
                    yield inner

    def _replan(self, *, timed: bool = False) -> None:
        self._source: Source = generate(self._spec, keep_tags=self._keeps_tags, timed=timed)
        self._rebind()

    def _rebind(self) -> None:
        for node in self._spec.nodes:
            if node.has_module and self._modules.get(node.key) is None:
                raise BuildError("the module of this node was deleted. Put one in its place.", path=node.key)
        targets = {key: self.target(key) for _, key in self._source.bound}
        self._program = bind(self._source, targets)
        self._bound = [*self._modules.values()]

    def _take_hash(self) -> None:
        """Hash now and keep it: what modules note down while they run is no part of the function."""
        self._hash = structural_hash(self)
        lazy = any(is_lazy(parameter) for parameter in self.parameters())
        self._hashed = None if lazy else self._parts()

    def _parts(self) -> list[nn.Module]:
        """Give the modules inside, without this graph itself, which would be a reference cycle."""
        return [module for module in self.modules() if module is not self]

    def _recall(self, position: int, stream: Any, graph_input: Any) -> Any:
        value = self._memory.carried[position]
        reader, _ = self._spec.carried[position]
        tag = self._spec.nodes[reader].carries
        assert tag is not None
        if value is not None:
            self._memory.check_batch(tag, value, graph_input)
            return value
        first = self._initial.get(tag)
        if first == _HELD:
            return _spread(getattr(self, f"{tag}_init"), stream)
        if first == "zeros":
            return torch.zeros_like(stream)
        return first(stream) if callable(first) else None

    def _carry(self, values: tuple[Any, ...], graph_input: Any) -> None:
        self._memory.carried = values
        sized = isinstance(graph_input, Tensor) and graph_input.dim() > 0
        self._memory.batch = graph_input.shape[0] if sized else None

    def _ordered(self, others: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Put the inputs after the stream into the order of their declaration."""
        names = self._spec.input_names
        missing = names[len(others) :]
        if (
            len(missing) == len(named)
            and len(others) <= len(names)
            and all(name in named for name in missing)
        ):
            return others + tuple(named[name] for name in missing)
        wanted = ", ".join(["x", *(f"{name}=…" for name in names)])
        got = f"{1 + len(others)} by position" + (f" and {', '.join(named)} by name" if named else "")
        raise InputError(
            f"the graph takes {self._num_inputs} input{'s' * (self._num_inputs != 1)}, got {got}. "
            f"Call it as model({wanted})."
        )

    def _blame(self, error: Exception, traceback: TracebackType | None) -> None:
        """Name the node whose line the error came through."""
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == self._source.filename:
                index = self._source.node_at_line.get(traceback.tb_lineno)
                if index is not None:
                    self._blame_node(error, index, traceback.tb_frame.f_locals)
                return
            traceback = traceback.tb_next

    def _blame_node(self, error: Exception, index: int, values: Mapping[str, Any]) -> None:
        node = self._spec.nodes[index]
        target = self._modules.get(node.key)
        if isinstance(target, Control | Graph):
            climb(error, node.key)
            return
        given = ", ".join(shape_of(values.get(self._source.names[source])) for source in node.inputs)
        what = "" if target is None else one_line(target) + ", "
        climb(error, node.key, f"{what}given {given}")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Graph:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._memory.move(fn)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        # A node may be called like an attribute of ours ("training", "_source"); both must stay.
        if name in self._modules and isinstance(value, nn.Module):
            self._modules[name] = value
        elif name in self._modules and (name == "training" or name.startswith("_")):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_program"], state["_source"], state["_stopwatch"], state["_bound"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._stopwatch = None
        self._replan()


def _held(value: Initial) -> Initial:
    return _HELD if isinstance(value, Tensor) else value


def _spread(value: Tensor, stream: Any) -> Tensor:
    """Repeat a first value with a leading 1 for every sample of the batch."""
    if value.dim() > 1 and value.shape[0] == 1 and isinstance(stream, Tensor) and stream.dim() > 0:
        return value.expand(stream.shape[0], *value.shape[1:])
    return value


def check_initial(value: Initial, tag: str) -> Initial:
    """Refuse a first value of a carried tag that cannot be one."""
    if value is None or isinstance(value, Tensor) or callable(value) or value == "zeros":
        return value
    raise StateError(
        f"init={value!r} for {tag!r}. Use None, 'zeros', a tensor, a parameter to learn, or a function "
        "of the stream."
    )

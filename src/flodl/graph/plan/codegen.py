"""Generate straight-line Python from a spec: one statement per node, values deleted after their last use.

Graphs with the same source share one code object, so that `torch.compile` compiles equal graphs once. It
looks like hand-written code, and tracebacks show its lines:

    def program(graph, input):
        linear_1 = run_linear_1(input)
        del input
        gelu_1 = run_gelu_1(linear_1)
        del linear_1
        return gelu_1
"""

from __future__ import annotations

import itertools
import keyword
import linecache
import re
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .exporting import is_exporting
from .shapes import add, maximum, mean, mul
from .spec import Node, Spec

Program = Callable[..., Any]

_MERGES = {"add": add, "mean": mean, "mul": mul, "maximum": maximum}
_numbers = itertools.count(1)


@dataclass(frozen=True, eq=False)
class Code:
    """Compiled source: the file name that tracebacks show, and the function that binds it to modules."""

    filename: str
    bind: Callable[..., Program]


# The code of every source that a graph uses now.
_codes: weakref.WeakValueDictionary[str, Code] = weakref.WeakValueDictionary()
_lock = threading.Lock()


@dataclass(frozen=True)
class Source:
    """Generated source, with the node of each line and the names to bind."""

    text: str
    names: tuple[str, ...]
    bound: tuple[tuple[str, str], ...]
    node_at_line: Mapping[int, int]
    code: Code

    @property
    def filename(self) -> str:
        """The file name that tracebacks show; graphs with the same source share it."""
        return self.code.filename


def bind(source: Source, targets: Mapping[str, Callable[..., Any]]) -> Program:
    """Return the function that runs the graph with these modules and functions."""
    return source.code.bind(*(targets[key] for _, key in source.bound))


def generate(spec: Spec, *, keep_tags: bool = True, timed: bool = False) -> Source:
    """Generate and compile the program of a spec.

    Without `keep_tags`, tagged values are freed like all others. With `timed`, the program calls the
    graph's stopwatch after every node.
    """
    writer = _Writer(spec, keep_tags, timed)
    text = writer.text()
    with _lock:
        code = _codes.get(text)
        if code is None:
            code = _codes[text] = _compiled(text)
    return Source(text, tuple(writer.names), tuple(writer.bound), writer.node_at_line, code)


def _compiled(text: str) -> Code:
    filename = f"<flodl graph {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"torch": torch, "is_exporting": is_exporting, **_MERGES}
    exec(compile(text, filename, "exec"), namespace)
    code = Code(filename, namespace["bind"])
    weakref.finalize(code, linecache.cache.pop, filename, None).atexit = False
    return code


class _Writer:
    def __init__(self, spec: Spec, keep_tags: bool, timed: bool) -> None:
        self.spec = spec
        self.keep_tags = keep_tags
        self.timed = timed
        self.names = _value_names(spec)
        self.bound: list[tuple[str, str]] = []
        self.node_at_line: dict[int, int] = {}
        self._lines: list[str] = []

    def text(self) -> str:
        spec = self.spec
        self.bound = [
            (f"run_{self.names[index]}", node.key)
            for index, node in enumerate(spec.nodes)
            if node.has_module or node.function is not None
        ]
        inputs = [self.names[i] for i, node in enumerate(spec.nodes) if node.kind == "input"]
        self._lines = [
            f"def bind({', '.join(name for name, _ in self.bound)}):",
            f"    def program(graph, {', '.join(inputs)}):",
        ]
        last_use = self._last_uses()
        if self.timed:
            self._write("graph._stopwatch.start()")
        for index, node in enumerate(spec.nodes):
            self._node(index, node)
            dead = [self.names[value] for value in sorted(last_use.get(index, ()))]
            if dead:
                self._write(f"del {', '.join(dead)}")
        self._write_memory()
        self._write(f"return {self.names[spec.output]}")
        self._lines.append("    return program")
        return "\n".join(self._lines) + "\n"

    def _write(self, statement: str) -> None:
        self._lines.append("        " + statement)

    def _node(self, index: int, node: Node) -> None:
        if node.kind == "input":
            return
        self.node_at_line[len(self._lines) + 1] = index
        self._write(f"{self.names[index]} = {self._expression(index, node)}")
        if self.timed:
            self._write(f"graph._stopwatch.lap({index})")

    def _expression(self, index: int, node: Node) -> str:
        values = [self.names[source] for source in node.sources]
        if node.kind == "state":
            position = [reader for reader, _ in self.spec.carried].index(index)
            return f"graph._recall({position}, {values[0]}, {values[1]})"
        if node.kind == "merge" and node.merge_op != "callable":
            return _merge_expression(node, values)
        if node.kind == "merge" and not node.spread:
            values = [f"[{', '.join(values)}]"]
        keywords = [_keyword(name, self.names[value]) for name, value in node.refs]
        return f"run_{self.names[index]}({', '.join(values + keywords)})"

    def _last_uses(self) -> dict[int, set[int]]:
        """Map each node to the values that are not used after it; an unused value belongs to its own node."""
        kept = {self.spec.output} | {writer for _, writer in self.spec.carried}
        if self.keep_tags:
            kept |= {index for _, index in self.spec.tags}
        if self.spec.carried:
            kept.add(0)
        last = {index: index for index in range(len(self.spec.nodes))}
        for index, node in enumerate(self.spec.nodes):
            for value in node.inputs:
                last[value] = index
        dead: dict[int, set[int]] = {}
        for value, index in last.items():
            if value not in kept:
                dead.setdefault(index, set()).add(value)
        return dead

    def _write_memory(self) -> None:
        """Update the memory at the end of the call, so that an error leaves it unchanged."""
        updates = []
        if self.spec.tags:
            values = ", ".join(self.names[index] for _, index in self.spec.tags)
            updates.append(f"graph._memory.values = {f'({values},)' if self.keep_tags else None}")
        if self.spec.carried:
            values = ", ".join(self.names[writer] for _, writer in self.spec.carried)
            updates.append(f"graph._carry(({values},), {self.names[0]})")
        if updates:
            # An exported program has no memory: writing to it would leak symbolic tensors.
            self._write("if not is_exporting():")
            for statement in updates:
                self._write("    " + statement)


def _keyword(name: str, value: str) -> str:
    plain = name.isidentifier() and not keyword.iskeyword(name)
    return f"{name}={value}" if plain else f"**{{{name!r}: {value}}}"


def _merge_expression(node: Node, values: list[str]) -> str:
    if node.merge_op == "cat":
        return f"torch.cat([{', '.join(values)}], {node.merge_dim})"
    function = "maximum" if node.merge_op == "max" else node.merge_op
    return f"{function}({', '.join(values)})"


def _value_names(spec: Spec) -> list[str]:
    taken = {"graph", "torch", "is_exporting", "program", "bind", *_MERGES}
    names = []
    for node in spec.nodes:
        name = re.sub(r"\W", "_", node.key)
        if name.startswith("run_") or name[0].isdigit():
            name = f"v_{name}"
        while name in taken or keyword.iskeyword(name):
            name += "_"
        taken.add(name)
        names.append(name)
    return names

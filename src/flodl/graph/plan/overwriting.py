"""Find nodes that modify a value in place that is read again.

What torch's own modules do is known when a graph is built. What other code does is seen in the first
calls: torch counts the writes into each tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from flodl.core import BuildError, log

from .memory import tensors
from .spec import Node, Spec

_FIX = "Use inplace=False, or operations that return a new tensor."


class Versions:
    """How often each tensor of a value has been written to; inference tensors do not count that.

    >>> import torch
    >>> value = torch.zeros(2)
    >>> before = Versions(value)
    >>> _ = value.add_(1)
    >>> before.have_changed()
    True
    """

    def __init__(self, value: Any) -> None:
        # Weak references, so that a check does not keep a value alive that the program frees.
        self._seen = [(weakref.ref(tensor), _version(tensor)) for tensor in tensors(value)]

    def have_changed(self) -> bool:
        """Return whether a tensor that is still alive was written to since."""
        for reference, version in self._seen:
            tensor = reference()
            if tensor is not None and version is not None and _version(tensor) != version:
                return True
        return False

    def check(self, part: str, reader: str) -> None:
        """Raise if the part of a control node has written into the value, which is read again."""
        if self.have_changed():
            raise BuildError(_message("part", "in place", reader), path=part)


def rejected(reader: str, path: str) -> BuildError:
    """Return the error about a module that is known to write into a value that is read later."""
    return BuildError(_message("module", "inplace=True", reader, "Use inplace=False."), path=path)


def writes_into_input(target: Any) -> bool:
    """Return whether a module of torch overwrites its input, or a container that begins with one."""
    if type(target) is nn.Sequential:
        changing = (module for module in target if type(module) is not nn.Identity)
        return writes_into_input(next(changing, None))
    if isinstance(spec := getattr(target, "spec", None), Spec):
        readers = [node for node in spec.nodes if 0 in node.sources and node.kind != "merge"]
        return any(writes_into_input(target.target(node.key)) for node in readers if node.has_module)
    if callable(parts := getattr(type(target), "parts", None)) and hasattr(target, "part_names"):
        return any(map(writes_into_input, parts(target).values()))
    is_of_torch = isinstance(target, nn.Module) and type(target).__module__.startswith("torch.nn.")
    return is_of_torch and getattr(target, "inplace", False) is True


def watched(
    spec: Spec, targets: Mapping[str, Callable[..., Any]], *, keep_tags: bool
) -> dict[str, Callable[..., Any]]:
    """Return the targets of a graph's nodes, each with a check of the values that are read after it."""
    watch = _Watch(spec, keep_tags)
    return {key: watch.wrap(spec.key_index[key], target) for key, target in targets.items()}


class _Watch:
    """The versions of the values of one call, from their first reader on."""

    def __init__(self, spec: Spec, keep_tags: bool) -> None:
        self._spec = spec
        self._tags = {index: tag for tag, index in reversed(spec.tags)} if keep_tags else {}
        self._seen: dict[int, Versions] = {}

    def wrap(self, index: int, target: Callable[..., Any]) -> Callable[..., Any]:
        node = self._spec.nodes[index]

        def run(*args: Any, **refs: Any) -> Any:
            self._see(node, args, refs)
            is_control = getattr(type(target), "is_watched", None) is False
            if is_control:
                vars(target)["is_watched"] = True
            try:
                result = target(*args, **refs)
            finally:
                if is_control:
                    vars(target).pop("is_watched", None)
            self._check(index, target)
            return result

        return run

    def _see(self, node: Node, args: tuple[Any, ...], refs: Mapping[str, Any]) -> None:
        values = args if node.spread else args[0]
        for source, value in [
            *zip(node.sources, values),
            *((source, refs[name]) for name, source in node.refs),
        ]:
            if source not in self._seen:
                self._seen[source] = Versions(value)

    def _check(self, index: int, target: Any) -> None:
        for value, versions in [*self._seen.items()]:
            if not versions.have_changed():
                continue
            del self._seen[value]
            reader = self._reader_after(index, value)
            if reader is not None:
                raise BuildError(_message("node", "in place", reader))
            if (
                value in self._tags
                and self._spec.nodes[value].kind != "input"
                and not writes_into_input(target)
            ):
                note_overwritten_tag(self._spec.nodes[index].key, "in place", self._tags[value])

    def _reader_after(self, index: int, value: int) -> str | None:
        for node in self._spec.nodes[index + 1 :]:
            if value in node.inputs:
                return repr(node.key)
        if value == self._spec.output:
            return "the output of the graph"
        if any(value == writer for _, writer in self._spec.carried):
            return "the next call"
        return None


def note_overwritten_tag(key: str, how: str, tag: str) -> None:
    """Log that a tagged value is overwritten, which nothing but `tagged` reads."""
    log.warn(
        "note: '%s' writes into its input (%s), so tagged('%s') returns the overwritten value. "
        "Use inplace=False to read the value before it.",
        key,
        how,
        tag,
    )


def _message(what: str, how: str, reader: str, fix: str = _FIX) -> str:
    return (
        f"the {what} writes into its input ({how}), which is also read by {reader}, after it: that would see "
        f"the overwritten value. {fix}"
    )


def _version(tensor: Tensor) -> int | None:
    try:
        return None if tensor.is_inference() else tensor._version
    except (RuntimeError, NotImplementedError):
        return None

"""Read from a signature which references a module or function accepts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Accepts:
    """The keyword parameters after the stream: their names, and which of them have no default."""

    names: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    anything: bool = False
    readable: bool = True
    stream: str | None = None

    def takes(self, name: str) -> bool:
        """Return whether a reference of that name can be passed; the stream's own parameter cannot."""
        return name in self.names or (self.anything and name != self.stream)

    def without(self, *names: str) -> Accepts:
        """Return a copy without some parameters."""
        return Accepts(
            tuple(name for name in self.names if name not in names),
            tuple(name for name in self.required if name not in names),
            self.anything,
            self.readable,
            self.stream,
        )

    def joined(self, other: Accepts) -> Accepts:
        """Return what at least one of the two accepts."""
        return Accepts(
            tuple(dict.fromkeys(self.names + other.names)),
            tuple(dict.fromkeys(self.required + other.required)),
            self.anything or other.anything,
            self.readable and other.readable,
            self.stream if not other.takes(self.stream or "") else None,
        )

    def describe(self) -> str:
        """Describe the parameters for an error message."""
        if not self.readable:
            return "its parameters cannot be read (it is not written in Python)"
        if self.anything:
            return f"it takes any reference except its stream, {self.stream!r}"
        if not self.names:
            return "it takes none"
        return "it takes " + ", ".join(repr(name) for name in self.names)


def accepts(target: Callable[..., Any]) -> Accepts:
    """Return the references that `target` accepts; graphs and control nodes declare theirs.

    >>> def blend(x, *, ctx, scale=1.0): ...
    >>> accepts(blend)
    Accepts(names=('ctx', 'scale'), required=('ctx',), anything=False, readable=True, stream='x')
    """
    own = method(target, "accepted_refs")
    if own is not None:
        declared = own()
        assert isinstance(declared, Accepts)
        return declared
    parameters = _parameters(target)
    if parameters is None:
        return Accepts(readable=False)
    names: list[str] = []
    required: list[str] = []
    anything = stream_seen = False
    stream = None
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            anything = True
        elif parameter.kind is parameter.VAR_POSITIONAL:
            stream_seen = True
        elif parameter.kind is parameter.KEYWORD_ONLY or (
            stream_seen and parameter.kind is not parameter.POSITIONAL_ONLY
        ):
            names.append(parameter.name)
            if parameter.default is parameter.empty:
                required.append(parameter.name)
        else:
            stream_seen = True
            stream = parameter.name if parameter.kind is parameter.POSITIONAL_OR_KEYWORD else None
    return Accepts(tuple(names), tuple(required), anything, stream=stream)


def method(target: object, name: str) -> Callable[..., Any] | None:
    """Return a method defined by the class of `target`; a submodule of that name does not count."""
    return getattr(target, name) if callable(getattr(type(target), name, None)) else None


@dataclass(frozen=True)
class MergeParameters:
    """The positional parameters of a merge function: how many it needs and takes at most."""

    needed: int
    most: int
    any_number: bool
    defaults: tuple[Any, ...]
    first_is_tensor: bool


def merge_parameters(target: Callable[..., Any]) -> MergeParameters | None:
    """Return the positional parameters of a merge function; None if they are unknown.

    >>> merge_parameters(lambda a, b=None: a)
    MergeParameters(needed=1, most=2, any_number=False, defaults=(None,), first_is_tensor=False)
    """
    parameters = _parameters(target)
    if parameters is None:
        return None
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    defaults = tuple(p.default for p in positional if p.default is not p.empty)
    return MergeParameters(
        needed=len(positional) - len(defaults),
        most=len(positional),
        any_number=any(p.kind is p.VAR_POSITIONAL for p in parameters),
        defaults=defaults,
        first_is_tensor=bool(positional) and positional[0].annotation in (Tensor, "Tensor", "torch.Tensor"),
    )


def _parameters(target: Callable[..., Any]) -> list[inspect.Parameter] | None:
    function = target.forward if isinstance(target, nn.Module) else target
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None

"""Functions and classes that explain a call with the wrong arguments, instead of Python's TypeError."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import wraps
from inspect import Parameter, signature, unwrap
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

from ..errors import (
    ArgsError,
    BuildError,
    CheckpointError,
    DataError,
    FlodlError,
    GraphError,
    LoopError,
    MetricError,
    MonitorError,
    PathError,
    PictureError,
    RouteError,
    ScheduleError,
)
from ..paths import suggestion
from .synonyms import synonym
from .tracebacks import hide_own_frames

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)
# The first parameters of methods, which a call does not name.
_BOUND = ("self", "cls")
# How similar a name must be to an argument to be a misspelled one.
_SIMILAR = 0.8
# Marks a function that explains its calls already.
_EXPLAINED = "__flodl_explained__"


class DataCallError(DataError, TypeError):
    """A function or class of flodl.data was called with the wrong arguments."""


class MonitorCallError(MonitorError, TypeError):
    """A monitor was created with the wrong arguments."""


class ScheduleCallError(ScheduleError, TypeError):
    """A schedule was created with the wrong arguments."""


class MetricCallError(MetricError, TypeError):
    """A method for metrics was called with the wrong arguments."""


class LoopCallError(LoopError, TypeError):
    """The end of a loop was called with the wrong arguments."""


class ArgsCallError(ArgsError, TypeError):
    """`Args`, or a function that describes an option, was called with the wrong arguments."""


class BuildCallError(BuildError, TypeError):
    """A method of a builder was called with the wrong arguments."""


class GraphCallError(GraphError, TypeError):
    """A method of a graph was called with the wrong arguments."""


class PictureCallError(PictureError, TypeError):
    """A method that draws or profiles was called with the wrong arguments."""


class RouteCallError(RouteError, TypeError):
    """A router or selector was created with the wrong arguments."""


class PathCallError(PathError, TypeError):
    """A method that takes a path was called with the wrong arguments."""


class CheckpointCallError(CheckpointError, TypeError):
    """A function for checkpoints was called with the wrong arguments."""


def explain_calls(
    error: type[FlodlError], *, name: str = "", elsewhere: Mapping[str, str] | None = None, example: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator: a call of the function with the wrong arguments raises `error` with advice.

    `elsewhere` are the names that others use for an argument, with what to write; `example` is a whole call.
    The signature stays as it is, and a TypeError from inside the function too. An error has no frames of
    flodl in its traceback.

    >>> @explain_calls(DataCallError)
    ... def read(path, *, skip=0): ...
    >>> read("a.csv", skp=3)
    Traceback (most recent call last):
    flodl.core.usage.calls.DataCallError: read has no argument 'skp'. Did you mean 'skip'?
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        called = name or getattr(function, "__name__", "the function")

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                try:
                    return function(*args, **kwargs)
                except TypeError as raised:
                    if raised.__traceback__ is None or raised.__traceback__.tb_next is not None:
                        raise  # it comes from inside the function
                    message = wrong_call(called, function, args, kwargs, elsewhere or {}, example)
                    raise (raised if message is None else error(message)) from None
            except BaseException as raised:
                hide_own_frames(raised)
                raise

        setattr(call, _EXPLAINED, True)
        return call

    return decorate


def explain_methods(
    error: type[FlodlError],
    *,
    elsewhere: Mapping[str, str] | None = None,
    examples: Mapping[str, str] | None = None,
    without: Sequence[str] = (),
) -> Callable[[C], C]:
    """Return a decorator for classes: a call of a public method with the wrong arguments raises `error`.

    `examples` has whole calls by name. Methods that explain their calls already, and those in `without`, do
    not change.

    >>> @explain_methods(DataCallError, examples={"skip": "Write rows.skip(3)."})
    ... class Rows:
    ...     def skip(self, count): ...
    >>> Rows().skip()
    Traceback (most recent call last):
    flodl.core.usage.calls.DataCallError: skip needs 'count'. Write rows.skip(3).
    """

    def decorate(kind: C) -> C:
        for name, method in [*vars(kind).items()]:
            if name.startswith("_") or name in without or not isinstance(method, FunctionType):
                continue
            if not hasattr(method, _EXPLAINED):
                decorator = explain_calls(error, elsewhere=elsewhere, example=(examples or {}).get(name, ""))
                setattr(kind, name, decorator(method))
        return kind

    return decorate


def explain_creation(
    error: type[FlodlError], *, elsewhere: Mapping[str, str] | None = None, example: str = ""
) -> Callable[[C], C]:
    """Return a decorator for classes: the wrong arguments for a new object raise `error` with advice.

    >>> @explain_creation(DataCallError, example="Write Rows(path).")
    ... class Rows:
    ...     def __init__(self, path, *, skip=0): ...
    >>> Rows()
    Traceback (most recent call last):
    flodl.core.usage.calls.DataCallError: Rows needs 'path'. Write Rows(path).
    """

    def decorate(kind: C) -> C:
        decorator = explain_calls(error, name=kind.__name__, elsewhere=elsewhere, example=example)
        # Unwrapped, because an inherited one would explain the call with the name of the base class.
        kind.__init__ = decorator(unwrap(kind.__init__))  # type: ignore[misc]
        return kind

    return decorate


def check_flag(method: str, name: str, value: object, error: type[FlodlError]) -> None:
    """Raise if an argument that switches something on is not a bool.

    >>> check_flag("gate", "masked", "no", BuildCallError)
    Traceback (most recent call last):
    flodl.core.usage.calls.BuildCallError: gate got masked='no'. Pass True or False.
    """
    if not isinstance(value, bool):
        shown = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
        raise error(f"{method} got {name}={shown:.60}. Pass True or False.")


def wrong_call(
    name: str,
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    elsewhere: Mapping[str, str],
    example: str,
) -> str | None:
    """Return what is wrong with the arguments of a call; None if they fit."""
    parameters = [*signature(function).parameters.values()]
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    known = [p.name for p in parameters if p.name not in _BOUND]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for keyword in kwargs:
        if keyword not in known and not takes_any:
            return f"{name} has no argument {keyword!r}. {hint_at_argument(keyword, known, elsewhere)}"
    if len(args) > len(positional):
        shown = [one for one in positional if one not in _BOUND]
        kinds = ", ".join(type(one).__name__ for one in args[len(positional) - len(shown) :])
        if not shown:
            named = ", ".join(f"{one}=…" for one in known)
            rest = f"Its arguments have names: {named}." if named else "It has no arguments."
            return f"{name} got {kinds}, and takes nothing by position. {example or rest}"
        text = f"{name} got {kinds} by position, and takes only {', '.join(shown)} that way."
        others = "Pass the other arguments by name. " if len(known) > len(shown) else ""
        return f"{text} {others}{example}".rstrip()
    twice = [one for one in positional[: len(args)] if one in kwargs]
    if twice:
        return f"{name} got {twice[0]!r} twice, by position and by name. Pass it once. {example}".rstrip()
    given = {*positional[: len(args)], *kwargs}
    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is Parameter.empty and p.kind not in variadic]
    missing = [one for one in needed if one not in given]
    return f"{name} needs {missing[0]!r}. {example}".rstrip() if missing else None


def hint_at_argument(keyword: str, known: Sequence[str], elsewhere: Mapping[str, str]) -> str:
    """Return what to write in place of an argument that does not exist."""
    is_typo = any(SequenceMatcher(None, keyword, one).ratio() >= _SIMILAR for one in known)
    if keyword in elsewhere and not is_typo:
        return elsewhere[keyword]
    if not is_typo and (meant := synonym(keyword, known)):
        return f"Did you mean {meant!r}?"
    return suggestion(keyword, known, known_as="arguments")

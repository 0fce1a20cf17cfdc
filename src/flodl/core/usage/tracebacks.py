"""Tracebacks that show the user's own frames, not flodl's internals."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

from .. import log
from ..contents.origin import is_own_file, is_user_file
from ..errors import FlodlError

P = ParamSpec("P")
R = TypeVar("R")

_OWN = "flodl."
# Set on an error of the user's code that flodl raises again in another process.
_MARK = "__flodl_user_error__"
_MODULE_FILE = os.path.join("torch", "nn", "modules", "module.py")


class _Kind(Enum):
    # This includes the code that makes up the user's graph.
    USER = auto()
    OWN = auto()
    # The user's model begins there, whoever calls it.
    MODULE_CALL = auto()
    LIBRARY = auto()


def hide_own_frames(error: BaseException) -> None:
    """Remove the frames of flodl from the traceback of an error, and from the exceptions it was raised from.

    Frames of the user stay, and so do those of libraries that the user's code called. An error of flodl
    explains itself, and keeps only frames of the user. An error that comes from the code of flodl is a bug
    to report, and keeps all frames; so does every error with `FLODL_VERBOSITY=debug`.

    A public function calls this in an `except` block, before a `raise` without an argument, which adds no
    frame of its own:

    >>> def fit():
    ...     try:
    ...         raise FlodlError("no data")
    ...     except BaseException as error:
    ...         hide_own_frames(error)
    ...         raise
    >>> fit()
    Traceback (most recent call last):
    flodl.core.errors.FlodlError: no data
    """
    if log.enabled(log.Verbosity.DEBUG):
        return
    for one, is_explained in _chain(error):
        # Not an assignment, which the class of an error may forbid (a frozen dataclass does).
        one.with_traceback(_shortened(one, is_explained=is_explained))


def hides_own_frames(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function that is not called in every step, so that it calls `hide_own_frames`.

    >>> @hides_own_frames
    ... def fit():
    ...     raise FlodlError("no data")
    >>> fit()
    Traceback (most recent call last):
    flodl.core.errors.FlodlError: no data
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            hide_own_frames(error)
            raise

    return call


def mark_user_error(error: BaseException) -> None:
    """Mark an error from the user's code that has no frames of the user here, as from another process."""
    if hasattr(error, "__dict__"):
        setattr(error, _MARK, True)


def chain_of(error: BaseException) -> list[BaseException]:
    """Return an error and those that it was raised from.

    >>> error = ValueError("b")
    >>> error.__cause__ = KeyError("a")
    >>> chain_of(error)
    [ValueError('b'), KeyError('a')]
    """
    return [one for one, _ in _chain(error)]


def _chain(error: BaseException) -> Iterator[tuple[BaseException, bool]]:
    """Yield an error and those that it was raised from, each with whether an error of flodl explains it."""
    waiting, seen = [(error, False)], set()
    while waiting:
        one, is_explained = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one, is_explained
        is_explained = is_explained or isinstance(one, FlodlError)
        waiting += [(other, is_explained) for other in (one.__cause__, one.__context__) if other is not None]


def _shortened(error: BaseException, *, is_explained: bool) -> TracebackType | None:
    """Return the traceback of an error without the frames of flodl."""
    nodes = [*_nodes(error.__traceback__)]
    kinds = [_kind_of(node) for node in nodes]
    if _Kind.OWN not in kinds:
        return error.__traceback__
    if isinstance(error, FlodlError):
        return _joined([node for node, kind in zip(nodes, kinds) if kind is _Kind.USER])
    kept, is_of_user = [], False
    for node, kind in zip(nodes, kinds):
        if kind is not _Kind.LIBRARY:
            is_of_user = kind is not _Kind.OWN
        if is_of_user:
            kept.append(node)
    is_bug = not (is_of_user or is_explained or hasattr(error, _MARK) or _is_out_of_memory(error))
    return error.__traceback__ if is_bug else _joined(kept)


def _nodes(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _joined(nodes: list[TracebackType]) -> TracebackType | None:
    """Return a new traceback with these frames; the old one may be in use elsewhere."""
    joined = None
    for node in reversed(nodes):
        joined = TracebackType(joined, node.tb_frame, node.tb_lasti, node.tb_lineno)
    return joined


def _kind_of(node: TracebackType) -> _Kind:
    path = node.tb_frame.f_code.co_filename
    # The methods of a dataclass of flodl have a file without a name.
    is_of_dataclass = path.startswith("<") and str(node.tb_frame.f_globals.get("__name__")).startswith(_OWN)
    if is_of_dataclass or is_own_file(path):
        return _Kind.OWN
    if is_user_file(path):
        return _Kind.USER
    return _Kind.MODULE_CALL if path.endswith(_MODULE_FILE) else _Kind.LIBRARY


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether this is an out-of-memory error, not a bug in flodl; torch is not imported here."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"

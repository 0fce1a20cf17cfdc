"""The traceback of an error in a rank as the user wants to see it, and the line of the user's code."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

from flodl.core import FlodlError, log
from flodl.core.contents import is_own_file, is_user_file


def without_own_frames(error: BaseException) -> str:
    """Return a traceback without the frames of flodl, where it has frames of the user.

    An error of flodl explains itself, so only the frames of the user are shown; "" if there are none.
    `FLODL_VERBOSITY=debug` keeps all frames.

    >>> try:
    ...     int("x")
    ... except ValueError as error:
    ...     print(without_own_frames(error).splitlines()[-1])
    ValueError: invalid literal for int() with base 10: 'x'
    """
    found = traceback.TracebackException.from_exception(error)
    if log.enabled(log.Verbosity.DEBUG):
        return "".join(found.format())
    explains_itself = isinstance(error, FlodlError)
    for one in _chain(found):
        if explains_itself:
            one.stack[:] = [frame for frame in one.stack if is_user_file(frame.filename)]
        elif any(is_user_file(frame.filename) for frame in one.stack):
            one.stack[:] = [frame for frame in one.stack if not is_own_file(frame.filename)]
    if explains_itself and not any(one.stack for one in _chain(found)):
        return ""
    return "".join(found.format())


def line_of_user(error: BaseException) -> str:
    """Return the innermost line of the user's code that an error passed through, or "".

    >>> line_of_user(ValueError("never raised"))
    ''
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_user_file(frame.filename)]
    return f"{own[-1].filename}, line {own[-1].lineno}, in {own[-1].name}" if own else ""


def _chain(found: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Yield an error and those that it was raised from."""
    waiting = [found]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None]

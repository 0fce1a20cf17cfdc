"""The traceback of an error in a rank as the user wants to see it, and the line of the user's code."""

from __future__ import annotations

import traceback

from flodl.core import FlodlError
from flodl.core.contents import is_user_file
from flodl.core.usage.tracebacks import chain_of, hide_own_frames


def without_own_frames(error: BaseException) -> str:
    """Return the traceback of an error as `hide_own_frames` leaves it; "" if it shows no frame.

    This happens for a self-explanatory flodl error with no user frames.

    >>> try:
    ...     int("x")
    ... except ValueError as error:
    ...     print(without_own_frames(error).splitlines()[-1])
    ValueError: invalid literal for int() with base 10: 'x'
    """
    hide_own_frames(error)
    if isinstance(error, FlodlError) and all(one.__traceback__ is None for one in chain_of(error)):
        return ""
    return "".join(traceback.format_exception(error))


def line_of_user(error: BaseException) -> str:
    """Return the innermost line of the user's code that an error passed through, or "".

    >>> line_of_user(ValueError("never raised"))
    ''
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_user_file(frame.filename)]
    return f"{own[-1].filename}, line {own[-1].lineno}, in {own[-1].name}" if own else ""

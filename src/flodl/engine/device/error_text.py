"""The one-line summary of an error, and the line of user code that raised it."""

from __future__ import annotations

import traceback


def error_summary(error: BaseException) -> str:
    """Return the first line of an error, with the second if the first ends in a colon.

    >>> error_summary(RuntimeError("backend='inductor' raised:\\nCppCompileError: C++ compile error\\n"))
    "backend='inductor' raised: CppCompileError: C++ compile error"
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def source_line(error: BaseException) -> str:
    """Return the line of user code and the error's notes, as the end of a sentence."""
    causes = [error]
    while (context := causes[-1].__context__) is not None:
        causes.append(context)
    frames = next(filter(None, map(_own_frames, reversed(causes))), [])
    line = f" at {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].line})" if frames else ""
    notes = " ".join(getattr(error, "__notes__", []))
    return f"{line}{' ' + notes if notes else ''}"


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of user code in an error's traceback."""
    others = "/torch/", "flodl/engine", "<frozen "
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not any(part in frame.filename for part in others)]

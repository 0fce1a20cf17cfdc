"""Which line of the user's code an error came from."""

from __future__ import annotations

import traceback


def source_line(error: BaseException) -> str:
    """Give the user's line, and the notes of a graph that the error passed through, to end a sentence."""
    cause: BaseException = error
    while cause.__context__ is not None:
        cause = cause.__context__
    frames = [
        frame
        for frame in traceback.extract_tb(cause.__traceback__)
        if "/torch/" not in frame.filename and "flodl/engine" not in frame.filename
    ]
    line = f" at {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].line})" if frames else ""
    notes = " ".join(getattr(error, "__notes__", []))
    return f"{line}{' ' + notes if notes else ''}"

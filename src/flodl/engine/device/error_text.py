"""The one-line summary of an error, and the lines of library and user code that raised it."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

# The parts of torch that are written in Python like a model is, so that a line there says something.
_LIBRARIES_OF_TORCH = "nn", "distributions", "optim"
_MACHINERY = "torch/nn/modules/module.py", "torch/nn/functional.py", "torch/optim/optimizer.py"
_INSTALLED = "/site-packages/", "/dist-packages/", "/torch/"
_LIBRARIES = f"{sysconfig.get_path('stdlib')}/", f"{Path(__file__).parents[2]}/"


def error_summary(error: BaseException) -> str:
    """Return the first line of an error, with the second if the first ends in a colon.

    >>> error_summary(RuntimeError("backend='inductor' raised:\\nCppCompileError: C++ compile error\\n"))
    "backend='inductor' raised: CppCompileError: C++ compile error"
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def source_line(error: BaseException) -> str:
    """Return the innermost line, the user's line that led to it, and the error's notes, to end a sentence.

    >>> try:
    ...     exec(compile("int('four')", "<train>", "exec"))
    ... except ValueError as error:
    ...     source_line(error)
    ' at <train>:1 ()'
    """
    causes = [error]
    while (context := causes[-1].__context__) is not None:
        causes.append(context)
    frames = next(filter(None, map(_frames, reversed(causes))), [])
    line = f" at {_place(frames[-1])}" if frames else ""
    # A line of a library says what happens, the user's own line says where to change it.
    if frames and _is_library(frames[-1]):
        users = [frame for frame in frames if not _is_library(frame)]
        line += f", called from {_place(users[-1])}" if users else ""
    notes = " ".join(getattr(error, "__notes__", []))
    return f"{line}{' ' + notes if notes else ''}"


def _place(frame: traceback.FrameSummary) -> str:
    return f"{frame.filename}:{frame.lineno} ({frame.line})"


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of an error's traceback that mean something to the user."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_plumbing(frame)]


def _is_plumbing(frame: traceback.FrameSummary) -> bool:
    """Return whether a frame belongs to flodl's engine, or to the machinery that runs modules in torch."""
    name = frame.filename.replace("\\", "/")
    if "flodl/engine" in name or "<frozen " in name:
        return True
    if "/torch/" not in name:
        return False
    return name.endswith(_MACHINERY) or not any(f"/torch/{part}/" in name for part in _LIBRARIES_OF_TORCH)


def _is_library(frame: traceback.FrameSummary) -> bool:
    name = frame.filename.replace("\\", "/")
    return any(part in name for part in _INSTALLED) or frame.filename.startswith(_LIBRARIES)

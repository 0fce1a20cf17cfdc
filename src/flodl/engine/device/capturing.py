"""Makes every tier report that the current stream is capturing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_inside = 0
_original: Callable[[], bool] = torch.cuda.is_current_stream_capturing


def _is_capturing() -> bool:
    """Return True, but the real answer to torch's optimizers, which would refuse to run."""
    if torch.compiler.is_compiling():
        return True
    caller = sys._getframe(1).f_globals.get("__name__", "")
    return _original() if caller.startswith("torch.optim") else True


@contextmanager
def report_capturing(device: torch.device) -> Iterator[None]:
    """Let `torch.cuda.is_current_stream_capturing()` return True, if the model is on CUDA.

    Some code reads values to take a shortcut unless it is being captured: transformers drops an attention
    mask that masks nothing. A step that took the shortcut only in its eager tier could not be captured, or
    would compute something else. So all tiers see the same answer.

    >>> with report_capturing(torch.device("cuda")):
    ...     torch.cuda.is_current_stream_capturing()
    True
    """
    if device.type != "cuda":
        yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    """Install the answer, unless the step of another thread already has."""
    global _inside, _original
    with _lock:
        if _inside == 0:
            _original = torch.cuda.is_current_stream_capturing
            torch.cuda.is_current_stream_capturing = _is_capturing
        _inside += 1


def _leave() -> None:
    """Remove the answer after the last overlapping step."""
    global _inside
    with _lock:
        _inside -= 1
        if _inside == 0:
            torch.cuda.is_current_stream_capturing = _original

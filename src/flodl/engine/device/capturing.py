"""What code hears that asks whether its work is being recorded: the same in every tier."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_inside = 0
_asked: Callable[[], bool] = torch.cuda.is_current_stream_capturing


def _answer() -> bool:
    """Say yes; to an optimizer of torch, which would refuse to run, what is the case."""
    if torch.compiler.is_compiling():
        return True
    asking = sys._getframe(1).f_globals.get("__name__", "")
    return _asked() if asking.startswith("torch.optim") else True


@contextmanager
def report_capturing(device: torch.device) -> Iterator[None]:
    """Answer yes to `torch.cuda.is_current_stream_capturing()`, where the model is on CUDA.

    Some code looks at values to find a short cut, but not while it is recorded: transformers leaves out an
    attention mask that hides nothing. A step that looked at values only in its eager tier could not be
    captured, and would not compute the same. So it hears one answer in all of them.

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
    """Steps of several threads may overlap: the first one in puts the answer there."""
    global _inside, _asked
    with _lock:
        if _inside == 0:
            _asked = torch.cuda.is_current_stream_capturing
            torch.cuda.is_current_stream_capturing = _answer
        _inside += 1


def _leave() -> None:
    """The last one out takes it away."""
    global _inside
    with _lock:
        _inside -= 1
        if _inside == 0:
            torch.cuda.is_current_stream_capturing = _asked

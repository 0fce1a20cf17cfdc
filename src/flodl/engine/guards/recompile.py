"""Refusing recompilation: compiled code whose guards fail raises instead of recompiling."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


class GuardFailed(Exception):
    """A guard of the compiled code failed; the message names it."""


@contextmanager
def no_recompiling() -> Iterator[None]:
    """Raise `GuardFailed` instead of recompiling, and name the guard that failed."""
    with _no_recompilation:
        try:
            yield
        except RuntimeError as error:
            if "fail_on_recompile" not in str(error):
                raise
            raise GuardFailed(f"the compiled code no longer fits ({_failed_guard(str(error))})") from error


def refusing_to_recompile(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that raises `GuardFailed` where the code that it calls would be recompiled."""

    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        with no_recompiling():
            return function(*args, **kwargs)

    return guarded


class _NoRecompilation:
    """Torch's stance against recompiling, shared by all threads: the last one to leave resets it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._stance: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                # Takes effect when it is constructed.
                self._stance = torch.compiler.set_stance("fail_on_recompile")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._stance.__exit__(None, None, None)


_no_recompilation = _NoRecompilation()


def _failed_guard(message: str) -> str:
    """Return the guard that failed, and its source line, from torch's error message.

    >>> _failed_guard("Detected recompile\\n  - 0/1: G['scale'] == 1.0     # x * scale # a.py:5\\n  - User")
    "G['scale'] == 1.0 # x * scale # a.py:5"
    """
    lines = [" ".join(line.split()) for line in message.splitlines() if line.strip()]
    named = [found[1] for line in lines if (found := re.match(r"- \d+/\d+: (.+)", line))]
    return named[0] if named else lines[-1]

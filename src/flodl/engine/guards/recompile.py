"""Guards of compiled code: a step that would be recompiled fails instead."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class GuardFailed(Exception):
    """Something that the compiled code rests on has changed; says what."""


@contextmanager
def no_compiling() -> Iterator[None]:
    """Refuse to compile again, and name the guard that asked for it."""
    with _only_what_is_compiled:
        try:
            yield
        except RuntimeError as error:
            if "fail_on_recompile" not in str(error):
                raise
            raise GuardFailed(f"the compiled code no longer fits ({_guard_of(str(error))})") from error


class _OnlyWhatIsCompiled:
    """Torch's stance against compiling again, one for all threads: the last one out takes it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._stance: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                # Set where it is made.
                self._stance = torch.compiler.set_stance("fail_on_recompile")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._stance.__exit__(None, None, None)


_only_what_is_compiled = _OnlyWhatIsCompiled()


def _guard_of(told: str) -> str:
    """Find the guard that failed, and the line it came from, in what torch says about it.

    >>> _guard_of("Detected recompile\\n  - 0/1: G['scale'] == 1.0     # x * scale # a.py:5\\n  - User")
    "G['scale'] == 1.0 # x * scale # a.py:5"
    """
    lines = [" ".join(line.split()) for line in told.splitlines() if line.strip()]
    named = [found[1] for line in lines if (found := re.match(r"- \d+/\d+: (.+)", line))]
    return named[0] if named else lines[-1]

"""Copies of tensors in a forked process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_IMPORTED_IN = os.getpid()


@contextmanager
def safe_after_fork() -> Iterator[None]:
    """Copy tensors with one thread in a forked process: it lacks the threads that torch would wait for."""
    if os.getpid() == _IMPORTED_IN:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""The global generators of Python, NumPy and torch: seeded for a sample, and given back as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def globals_kept() -> Iterator[None]:
    """Give the global random states back unchanged: the randomness of the model goes on as if nothing was."""
    of_python, of_numpy, of_torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)


def seed_globals(key: int) -> None:
    """Seed the global generators with the key of a sample; those of other devices are left alone."""
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key & (2**63 - 1))

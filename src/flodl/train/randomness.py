"""The random streams of a run, as data that can be saved, and put back."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def random_state(device: torch.device) -> dict[str, Any]:
    """Give the state of Python's, NumPy's, torch's and the device's random numbers; nothing is waited for."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [str(name), torch.from_numpy(np.array(keys, dtype=np.int64)), position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Put the streams back where `random_state` was taken."""
    random.setstate(state["python"])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


@contextmanager
def untouched_randomness(device: torch.device) -> Iterator[None]:
    """Leave the random streams as they were, whatever happens inside."""
    before = random_state(device)
    try:
        yield
    finally:
        restore_random_state(before, device)

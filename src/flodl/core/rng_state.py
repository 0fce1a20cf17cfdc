"""Saving and restoring the state of the global random number generators."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RngState:
    """The state of the generators of Python, NumPy and torch, and of some CUDA devices.

    >>> state = RngState.capture()
    >>> first = random.random()
    >>> state.restore()
    >>> random.random() == first
    True
    """

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    cpu: torch.Tensor
    cuda: tuple[tuple[torch.device, torch.Tensor], ...] = ()

    @classmethod
    def capture(cls, *devices: torch.device) -> RngState:
        """Return the current state, with those of `devices` that are CUDA devices; does not synchronize."""
        import numpy as np
        import torch

        return cls(
            random.getstate(),
            np.random.get_state(legacy=False),
            torch.get_rng_state(),
            tuple((device, torch.cuda.get_rng_state(device)) for device in devices if device.type == "cuda"),
        )

    def restore(self) -> None:
        """Set the generators to this state."""
        import numpy as np
        import torch

        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        for device, state in self.cuda:
            torch.cuda.set_rng_state(state, device)

    def check(self) -> None:
        """Raise what `restore` would raise if this is not the state of such generators; nothing changes."""
        import numpy as np
        import torch

        random.Random().setstate(self.python)
        np.random.RandomState().set_state(self.numpy)
        torch.Generator().set_state(self.cpu)
        for device, state in self.cuda:
            torch.Generator(device).set_state(state)

    def same_on_cpu(self, other: RngState) -> bool:
        """Return whether the generators of Python, NumPy and torch's CPU are in the same state."""
        import pickle

        import torch

        same_numpy = pickle.dumps(self.numpy) == pickle.dumps(other.numpy)
        return same_numpy and self.python == other.python and torch.equal(self.cpu, other.cpu)

    def same_on_cuda(self, other: RngState) -> bool:
        """Return whether the generators of the CUDA devices are in the same state."""
        import torch

        return all(torch.equal(mine, theirs) for (_, mine), (_, theirs) in zip(self.cuda, other.cuda))

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and plain data, with that of at most one CUDA device."""
        import numpy as np
        import torch

        name, mersenne = self.numpy["bit_generator"], self.numpy["state"]
        keys = torch.from_numpy(np.array(mersenne["key"], dtype=np.int64))
        state: dict[str, Any] = {
            "python": self.python,
            "numpy": [str(name), keys, mersenne["pos"], self.numpy["has_gauss"], self.numpy["gauss"]],
            "torch": self.cpu,
        }
        if self.cuda:
            [(_, state["cuda"])] = self.cuda
        return state

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], device: torch.device) -> RngState:
        """Rebuild a state from `state_dict`; `device` takes the state of the CUDA device, if there is one."""
        import numpy as np

        name, keys, position, has_gauss, gauss = state["numpy"]
        numpy = {
            "bit_generator": name,
            "state": {"key": keys.numpy().astype(np.uint32), "pos": position},
            "has_gauss": has_gauss,
            "gauss": gauss,
        }
        on_cuda = device.type == "cuda" and "cuda" in state
        return cls(state["python"], numpy, state["torch"], ((device, state["cuda"]),) if on_cuda else ())


@contextmanager
def preserve_rng_state(*devices: torch.device) -> Iterator[None]:
    """Restore the global random state after the block, with those of `devices` that are CUDA devices.

    >>> with preserve_rng_state():
    ...     inside = random.random()
    >>> random.random() == inside
    True
    """
    state = RngState.capture(*devices)
    try:
        yield
    finally:
        state.restore()

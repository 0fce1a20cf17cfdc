"""A random stream on the host that can be saved, and one call that seeds everything."""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import MutableSequence
from typing import Any

from .integers import as_integer, is_index, is_integer, is_number

_SEEDS_OF_USERS = 2**32  # larger seeds are torch's own: the default, and those of torch.seed and workers
given_seed: int | None = None  # the argument of the last manual_seed


class Rng:
    """A stream of random numbers (PCG-64) that can be saved, restored and forked by name.

    >>> rng = Rng(7)
    >>> saved = rng.state_dict()
    >>> first = [rng.integer(100) for _ in range(4)]
    >>> rng.load_state_dict(saved)
    >>> [rng.integer(100) for _ in range(4)] == first
    True
    """

    def __init__(self, seed: int | None = None) -> None:
        import numpy as np

        if seed is not None:
            if not is_index(seed, at_least=0):
                raise ValueError(f"the seed is {seed!r}; expected None or an integer of at least 0.")
            seed = operator.index(seed)
        self._sequence = np.random.SeedSequence(seed)
        self._generator = np.random.Generator(np.random.PCG64(self._sequence))

    @property
    def seed(self) -> int:
        """The seed of this stream; drawn from the operating system if none was given."""
        entropy = self._sequence.entropy
        assert isinstance(entropy, int)
        return entropy

    def integer(self, bound: int) -> int:
        """Draw an integer from [0, bound)."""
        bound = _index("bound", bound)
        if bound < 1:
            raise ValueError(f"bound={bound}: the range is empty; bound must be at least 1.")
        return int(self._generator.integers(0, bound))

    def range(self, low: int, high: int) -> int:
        """Draw an integer from [low, high)."""
        low, high = _index("low", low), _index("high", high)
        if high <= low:
            raise ValueError(f"low={low}, high={high}: the range is empty; high must be greater than low.")
        return int(self._generator.integers(low, high))

    def uniform(self) -> float:
        """Draw a float from [0, 1)."""
        return float(self._generator.random())

    def normal(self, mean: float = 0.0, std: float = 1.0) -> float:
        """Draw from a normal distribution."""
        if not is_number(mean):
            raise ValueError(f"mean is {mean!r}; expected a number.")
        if not is_number(std) or std < 0:
            raise ValueError(f"std is {std!r}; a standard deviation is a number of at least 0.")
        return float(self._generator.normal(mean, std))

    def bernoulli(self, p: float) -> bool:
        """Draw True with probability `p`."""
        if not is_number(p) or not 0.0 <= p <= 1.0:
            raise ValueError(f"p is {p!r}; a probability must be a number between 0 and 1.")
        return self.uniform() < p

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Shuffle the items in place."""
        for last in range(len(items) - 1, 0, -1):
            other = self.integer(last + 1)
            items[last], items[other] = items[other], items[last]

    def permutation(self, count: int) -> list[int]:
        """Return the integers below `count` in random order."""
        count = _index("count", count)
        if count < 0:
            raise ValueError(f"count={count}; expected an integer of at least 0.")
        return [int(index) for index in self._generator.permutation(count)]

    def fork(self, name: str) -> Rng:
        """Return an independent stream that depends only on this stream's seed and on `name`.

        >>> Rng(1).fork("augment").integer(1000) == Rng(1).fork("augment").integer(1000)
        True
        >>> Rng(1).fork("augment").integer(10**9) == Rng(1).fork("order").integer(10**9)
        False
        """
        import hashlib

        digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        return Rng(int.from_bytes(digest[:16], "little"))

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON-compatible data."""
        return {"seed": self.seed, "generator": self._generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        if not {"seed", "generator"} <= state.keys():
            raise ValueError(
                f"the state has {sorted(state)}; expected seed and generator, as state_dict() returns."
            )
        restored = Rng(int(state["seed"]))
        restored._generator.bit_generator.state = state["generator"]
        self._sequence, self._generator = restored._sequence, restored._generator


def _index(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name}={value!r}; expected an integer.") from None


def manual_seed(seed: int) -> None:
    """Seed Python, NumPy and PyTorch on every device, and set the default seed of loaders and trainers."""
    import numpy as np
    import torch

    seed = as_integer(seed)
    if not is_integer(seed, at_least=0) or seed >= 2**64:
        raise ValueError(f"the seed is {seed!r}; expected an integer from 0 to 2**64 - 1.")
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if sys.platform == "darwin" and torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
    global given_seed
    given_seed = seed


def default_seed() -> int:
    """Return the seed that was given last to `manual_seed` or `torch.manual_seed`, else 0.

    Torch seeds itself with a random 64-bit number at the start, and does not say so. Therefore a seed that
    was given to `torch.manual_seed` is recognized only if it is below 2**32.

    >>> manual_seed(7)
    >>> default_seed()
    7
    """
    import torch

    current = torch.initial_seed()
    if current < _SEEDS_OF_USERS or current == given_seed:
        return current
    return 0 if given_seed is None else given_seed

"""Values of any kind can be recorded, and are recorded in the same way each time."""

import json
import random
from argparse import Namespace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from flodl.core.plain import plain


class Broken:
    def __repr__(self):
        raise ValueError("mine")


class Holder:
    def __init__(self, value):
        self.value, self._hidden = value, object()


def random_value(rng, depth=0):
    kinds = [
        lambda: rng.choice([None, True, 0, -3, 1e300, float("inf"), "text", "ä\n", b"bytes", 2j]),
        lambda: torch.rand(rng.randrange(4), generator=torch.Generator().manual_seed(rng.randrange(9))),
        lambda: torch.zeros(rng.randrange(3), rng.randrange(80), dtype=rng.choice([torch.int8, torch.bool])),
        lambda: torch.zeros(2, dtype=rng.choice([torch.bfloat16, torch.complex64])),
        lambda: np.arange(rng.randrange(200)),
        lambda: Path("x"),
        lambda: Holder(rng.random()),
        lambda: Broken(),
    ]
    if depth < 4:
        inner = partial(random_value, rng, depth + 1)
        kinds += [
            lambda: [inner() for _ in range(rng.randrange(4))],
            lambda: tuple(inner() for _ in range(rng.randrange(4))),
            lambda: {rng.choice(["a", 1, ("t",), None]): inner() for _ in range(rng.randrange(4))},
            lambda: Holder(inner()),
            lambda: Namespace(**{name: inner() for name in "xy"}),
        ]
    return rng.choice(kinds)()


def test_any_value_can_be_recorded_and_is_the_same_each_time(fuzz):
    def check(rng):
        state = rng.getstate()
        one = plain(random_value(rng))
        again = random.Random()
        again.setstate(state)
        assert json.loads(json.dumps(one)) == one == plain(random_value(again))

    fuzz(check)

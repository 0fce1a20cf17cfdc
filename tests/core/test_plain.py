"""Any value becomes plain data: readable, JSON-serializable, the same each time."""

import json
from argparse import Namespace
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from flodl.core.plain import describe, hide_secret, plain


class Color(Enum):
    RED = 1


class Text(str):
    """A string of a class of its own."""


@dataclass
class Job:
    rate: float = 0.1
    inner: dict = field(default_factory=lambda: {"a": (1, 2)})


class Broken:
    def __repr__(self):
        raise ValueError("mine")


class Holder:
    def __init__(self, value):
        self.value, self._hidden = value, object()


def function(x, scale=2.0):
    return x * scale


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (float("nan"), "nan"),
        (Color.RED, "RED"),
        (Text("a"), "a"),
        (np.float32(0.1), 0.1),
        (np.int64(3), 3),
        (torch.tensor(1e-3), 0.001),
        (torch.tensor([1, 2]), [1, 2]),
        (torch.bfloat16, "bfloat16"),
        (torch.device("cpu"), "cpu"),
        (Path("a") / "b", "a/b"),
        ({1: {2, 1}}, {"1": [1, 2]}),
        (Namespace(a=Job()), {"a": {"rate": 0.1, "inner": {"a": [1, 2]}}}),
        (Holder(3), "Holder(value=3)"),
        (partial(print, 3, sep="-"), "partial(print, 3, sep='-')"),
        (nn.Linear, "Linear"),
        (Broken(), "Broken"),
        ({"token": "abc", "tokens": 3}, {"token": "hidden (ba7816bf8f01)", "tokens": 3}),
    ],
)
def test_values_of_all_kinds_are_plain(value, expected):
    assert plain(value) == expected
    assert json.loads(json.dumps(plain(value))) == plain(value)


def test_a_function_is_known_by_its_code_and_by_what_it_takes_from_outside():
    def made(rate):
        def schedule(step):
            return rate * step

        return schedule

    assert describe(made(0.1)) == describe(made(0.1)) != describe(made(0.2))
    assert describe(function).startswith("function #")
    assert describe(function).endswith("(scale=2.0)")
    one, two = lambda step: step * 0.1, lambda step: step * 0.2
    assert describe(one) == "lambda step: step * 0.1"
    assert describe(two) == "lambda step: step * 0.2"


def test_large_values_are_known_by_a_hash():
    one, other = torch.zeros(1000), torch.zeros(1000)
    other[7] = 1
    assert plain(one) != plain(other)
    numbers = list(range(1000))
    assert plain(numbers) != plain([*numbers[:-1], 0])
    assert len(plain(numbers)) == 65


def test_objects_that_contain_themselves_end():
    holder = Holder(None)
    holder.value = [holder, {"again": holder}]
    assert json.dumps(plain(holder))


def test_secrets_are_hidden_by_their_names():
    assert hide_secret("wandb_api_key", "abc") == hide_secret("password", "abc") == "hidden (ba7816bf8f01)"
    assert hide_secret("tokenizer", "gpt2") == "gpt2"

"""Plain attributes of modules are restored after a repeated step."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flodl.engine.device.autograd_history import has_live_history
from flodl.engine.state.reachable_state import ReachableState


def test_added_removed_and_changed_values_are_restored() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].kept = kept = {"list": [1, torch.zeros(2)], "queue": deque([1, 2], maxlen=2), "set": {1}}
    model[0].gone = "here"
    before = ReachableState(model)
    kept["list"][1].add_(1)
    kept["list"].append(3)
    kept["queue"].append(3)
    kept["set"].add(2)
    kept["new"] = True
    del model[0].gone
    model[0].kept = None
    before.restore()
    assert model[0].kept is kept
    assert list(kept) == ["list", "queue", "set"]
    assert kept["list"][0] == 1
    assert torch.equal(kept["list"][1], torch.zeros(2))
    assert len(kept["list"]) == 2
    assert kept["queue"] == deque([1, 2])
    assert kept["queue"].maxlen == 2
    assert kept["set"] == {1}
    assert model[0].gone == "here"


def _draws(source: Any) -> Any:
    if isinstance(source, torch.Generator):
        return torch.rand((), generator=source).item()
    return source.random()


@pytest.mark.parametrize(
    "source",
    [random.Random(0), np.random.default_rng(0), torch.Generator().manual_seed(0)],
    ids=["python", "numpy", "torch"],
)
def test_a_generator_draws_the_same_again(source: Any) -> None:
    model = nn.Linear(2, 2)
    model.sources = [source]
    before = ReachableState(model)
    first = _draws(source)
    before.restore()
    assert _draws(source) == first


def test_a_list_that_contains_itself_is_restored() -> None:
    model = nn.Linear(2, 2)
    model.ring = [1]
    model.ring.append(model.ring)
    before = ReachableState(model)
    model.ring.append(2)
    before.restore()
    assert len(model.ring) == 2
    assert model.ring[1] is model.ring


@dataclass
class Output:
    hidden: torch.Tensor


class Keeping(nn.Linear):
    """Keeps its last output in all common ways."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = super().forward(x)
        self.nested = {"pair": (self.last, "name"), "list": [self.last], "queue": deque([self.last])}
        self.others = [OrderedDict(last=self.last), Output(self.last)]
        return self.last


def test_autograd_histories_of_earlier_steps_are_released() -> None:
    model = nn.Sequential(Keeping(3, 2))
    moments = []
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
        moments.append(ReachableState(model))
    last, nested = model[0].last.detach().clone(), model[0].nested
    assert has_live_history(model.parameters())
    for moment in moments:
        moment.cut_history(())
    moments[0].restore()
    assert not has_live_history(model.parameters())
    moments[1].restore()
    assert not has_live_history(model.parameters())
    assert model[0].nested is nested
    assert torch.equal(nested["pair"][0], last)
    assert nested["pair"][1] == "name"
    assert torch.equal(nested["queue"][0], last)


def test_a_history_that_is_kept_from_step_to_step_is_lasting() -> None:
    model = nn.Linear(3, 3)
    model.turned = turned = model.weight.t()
    model.last = model(torch.ones(1, 3))
    before = ReachableState(model)
    model.last = model(torch.ones(1, 3))
    after = ReachableState(model)
    (persistent,) = before.persistent_histories(after)
    assert persistent is turned
    before.cut_history([persistent])
    model.turned = model.last = None
    before.restore()
    assert model.turned.grad_fn is not None
    assert model.last.grad_fn is None

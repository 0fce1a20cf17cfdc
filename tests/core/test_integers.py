"""Counts and settings may be integers of NumPy, everywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import flodl
from flodl import FlowBuilder, ThresholdHalt, engine
from flodl.checkpoint import best, every, last, save_bundle
from flodl.core import CheckpointError
from flodl.hf.packing.slot import Slot
from flodl.hf.text.batching import plan_batches
from flodl.nn import Reshape, load_balancing_loss

TWO, ONE = np.int64(2), np.int32(1)


def line() -> FlowBuilder:
    return FlowBuilder(nn.Linear(4, 4))


ACCEPTED = {
    "last": lambda two, one: str(last(two)),
    "best": lambda two, one: str(best("loss", two)),
    "every": lambda two, one: str(every(two)),
    "for_n": lambda two, one: line().loop_body(nn.Linear(4, 4)).for_n(two).build().structural_hash,
    "until": lambda two, one: (
        line().loop_body(nn.Linear(4, 4)).until_cond(ThresholdHalt(1.0), two).build().structural_hash
    ),
    "slices": lambda two, one: line().map(nn.Linear(2, 2)).slices(two).build().structural_hash,
    "merge": lambda two, one: (
        line().split([nn.Linear(4, 2), nn.Linear(4, 2)]).merge("cat", dim=one).build().structural_hash
    ),
    "top_k": lambda two, one: load_balancing_loss(torch.tensor([[0.9, 0.1]]), top_k=one),
    "reshape": lambda two, one: Reshape(-1, two, two).shape,
    "slot": lambda two, one: Slot(32 * two, two, 2 * two),
    "plan_batches": lambda two, one: plan_batches([3, 9, 4], batch_size=two, max_tokens=two * 9),
    "capture": lambda two, one: engine.capture(abs, max_captures=two, warmup=one)(-1),
}


@pytest.mark.parametrize("call", ACCEPTED.values(), ids=list(ACCEPTED))
def test_a_numpy_integer_means_the_same_as_an_int(call) -> None:
    assert repr(call(TWO, ONE)) == repr(call(2, 1))


def test_steps_and_seeds_may_be_numpy_integers(tmp_path) -> None:
    assert save_bundle(tmp_path, TWO, {"model": {"w": torch.ones(2)}}).name == "step-00000002"
    flodl.manual_seed(TWO)
    drawn = torch.rand(2)
    flodl.manual_seed(2)
    assert torch.equal(drawn, torch.rand(2))


@pytest.mark.parametrize("value", [np.bool_(True), True, np.float64(2.0), np.array([2]), "2"], ids=repr)
def test_other_values_are_rejected_as_before(value) -> None:
    for policy in (last, every, lambda n: best("loss", n)):
        with pytest.raises(CheckpointError, match="pass an integer >= 1"):
            policy(value)
    with pytest.raises(flodl.GraphError, match="at least 1"):
        line().map(nn.Linear(2, 2)).slices(value).build()

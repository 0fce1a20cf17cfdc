"""A node that gets the tuple of an nn.LSTM or nn.GRU: the error shows how to select a part of it."""

import pytest
import torch
from torch import nn

from flodl import FlowBuilder
from flodl.core import ShapeError

ADVICE = (
    "'gru_1', returns a tuple of 2. Select its first part before this node: .through(lambda out: out[0])."
)
TOKENS = torch.randint(0, 9, (4, 5))


def after_gru(*parts):
    flow = FlowBuilder(nn.Embedding(9, 8)).through(nn.GRU(8, 8, batch_first=True))
    for part in parts:
        flow = flow.through(part)
    return flow


@pytest.mark.parametrize(
    "part",
    [
        nn.Linear(8, 2),
        nn.Flatten(),
        nn.LSTM(8, 8),
        lambda v: v.mean(1),
        FlowBuilder(nn.Linear(8, 2)).build(),
    ],
    ids=["linear", "flatten", "lstm", "function", "graph"],
)
def test_a_call_says_how_to_select_a_part_of_a_tuple(part):
    graph = after_gru(part).build()
    with pytest.raises((TypeError, AttributeError)) as caught:
        graph(TOKENS)
    assert f"flodl: the node before, {ADVICE}" in caught.value.__notes__


def test_build_with_an_example_says_how_to_select_a_part_of_a_tuple():
    with pytest.raises(ShapeError) as caught:
        after_gru(nn.Linear(8, 2)).build(example=TOKENS)
    assert str(caught.value).startswith("at 'linear_1': ")
    assert str(caught.value).endswith(f". The node before, {ADVICE}")


def test_the_advice_works():
    graph = after_gru(lambda out: out[0], nn.Linear(8, 2)).build(example=TOKENS)
    assert graph(TOKENS).shape == (4, 5, 2)


def test_an_error_that_is_not_about_the_tuple_gets_no_advice():
    def fail(pair):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        after_gru(fail).build()(TOKENS)
    assert not any("the node before" in note for note in caught.value.__notes__)

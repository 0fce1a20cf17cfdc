"""Shuffled data for graphs that carry values from batch to batch is reported."""

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, Loader

NOTE = "each row continues the state of an unrelated row"


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x, *, hidden):
        return self.cell(x, hidden)


def recurrent():
    builder = FlowBuilder(Cell()).using("hidden", init=lambda x: torch.zeros(len(x), 4)).tag("hidden")
    return builder.through(nn.Linear(4, 1)).build()


def square(model, x, y):
    return (model(x) - y).square().mean()


def square_from_zero(model, x, y):
    model.reset_state()
    return square(model, x, y)


@pytest.fixture
def told(make, capsys):
    def run(model, step_fn, shuffle, **options):
        x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
        loader = Loader((x, x.sum(1, keepdim=True)), 8, shuffle=shuffle)
        make(model, step_fn, **options).fit(loader, epochs=2)
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize("shuffle", [None, True])
@pytest.mark.parametrize("options", [{}, {"monitor": False}])
def test_a_carried_state_with_shuffled_data_is_reported_once(told, shuffle, options):
    assert told(recurrent(), square, shuffle, **options).count(NOTE) == 1


def test_data_in_order_and_states_that_are_reset_are_not_reported(told):
    assert NOTE not in told(recurrent(), square, False)
    assert NOTE not in told(recurrent(), square_from_zero, None)
    assert NOTE not in told(nn.Linear(3, 1), square, None)

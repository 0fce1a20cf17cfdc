"""A node that fails in the first call because of the initial value of a carried tag is told what to pass."""

import pytest
import torch
from torch import nn

from flodl import FlowBuilder


class Cell(nn.Module):
    def forward(self, x, *, memory):
        return x + memory


def notes_of(graph, x):
    with pytest.raises((TypeError, RuntimeError)) as raised:
        graph(x)
    return "\n".join(raised.value.__notes__)


def test_a_cell_that_does_not_handle_none_gets_advice_about_first_values():
    graph = FlowBuilder(Cell()).using("memory").tag("memory").build()
    assert "'memory' is None in the first call" in notes_of(graph, torch.ones(2, 3))


def test_zeros_of_another_shape_than_the_stream_need_a_function():
    graph = FlowBuilder(nn.GRUCell(8, 16)).using("hx", init="zeros").tag("hx").build()
    assert "init=lambda x: x.new_zeros(len(x), 16)" in notes_of(graph, torch.ones(2, 8))


def test_later_calls_get_no_advice_about_first_values():
    graph = FlowBuilder(nn.GRUCell(8, 8)).using("hx", init="zeros").tag("hx").build()
    graph(torch.ones(2, 8))
    assert "first call" not in notes_of(graph, torch.ones(2, 5))

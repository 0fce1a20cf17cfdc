"""A mistake in a part of a graph, or in its inputs, shows the frames of the user and of torch."""

import traceback

import pytest
import torch
from torch import nn

from flodl import FlowBuilder

CALL = ["_wrapped_call_impl", "_call_impl"]
# The code of the graph, which shows the node.
CODE = ["program"]


def frames(function, *arguments):
    with pytest.raises(Exception) as found:
        function(*arguments)
    return [frame.name for frame in traceback.extract_tb(found.value.__traceback__)], found.value


class Fails(nn.Module):
    def forward(self, x):
        raise KeyError("label")


def test_an_error_of_a_module_shows_its_frames_and_keeps_its_path():
    names, error = frames(FlowBuilder(nn.Linear(2, 2)).through(Fails()).build(), torch.ones(1, 2))
    assert names == ["frames", *CALL, *CODE, *CALL, "forward"]
    assert type(error) is KeyError
    assert error.__notes__


def test_an_error_of_a_function_shows_its_frames():
    def fails(x):
        raise KeyError("label")

    names, _ = frames(FlowBuilder(nn.Linear(2, 2)).through(fails).build(), torch.ones(1, 2))
    assert names == ["frames", *CALL, *CODE, "fails"]


def test_a_wrong_shape_shows_the_frames_of_torch():
    names, error = frames(FlowBuilder(nn.Linear(2, 2)).build(), torch.ones(1, 3))
    assert names == ["frames", *CALL, *CODE, *CALL, "forward"]
    assert traceback.extract_tb(error.__traceback__)[-1].filename.endswith("linear.py")


def test_a_nested_graph_and_a_loop_show_no_frames_of_flodl():
    inner = FlowBuilder(Fails()).build()
    names, _ = frames(FlowBuilder(inner).build(), torch.ones(1, 2))
    assert names == ["frames", *CALL, *CODE, *CALL, *CODE, *CALL, "forward"]
    looped = FlowBuilder(nn.Linear(2, 2)).loop_body(Fails()).for_n(2).build()
    names, _ = frames(looped, torch.ones(1, 2))
    assert names == ["frames", *CALL, *CODE, *CALL, *CALL, "forward"]


def test_wrong_inputs_show_one_frame_of_flodl():
    names, _ = frames(FlowBuilder(nn.Linear(2, 2)).build(), torch.ones(1, 2), torch.ones(1, 2))
    assert names == ["frames", *CALL, "forward"]

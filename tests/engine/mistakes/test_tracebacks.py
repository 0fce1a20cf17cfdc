"""A mistake in a step shows the frames of the user and of torch below them, not those of the engine."""

import traceback

import pytest
import torch
from torch import nn

from flodl import TrainStep, set_verbosity

X, Y = torch.ones(3, 4), torch.ones(3, 2)


def frames(function, *arguments, **named):
    with pytest.raises(Exception) as found:
        function(*arguments, **named)
    chain = [found.value, found.value.__cause__]
    return [[frame.name for frame in traceback.extract_tb(one.__traceback__)] for one in chain if one]


def step(step_fn, **options):
    model = nn.Linear(4, 2)
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager", **options)


def per_sample(model, x, y):
    return (model(x) - y).square().mean(1)


def mean(model, x, y):
    return per_sample(model, x, y).mean()


def fails(model, x, y):
    raise KeyError("label")


def test_a_wrong_loss_shows_the_line_that_called_the_step():
    assert frames(step(per_sample), X, Y) == [["frames"]]


def test_an_error_of_the_step_function_shows_its_frames():
    assert frames(step(fails), X, Y) == [["frames", "fails"]]


def test_an_error_of_the_model_shows_the_frames_of_torch_in_the_cause():
    shown, cause = frames(step(mean), X[:, :3], Y)
    assert shown == ["frames"]
    assert cause[:3] == ["mean", "per_sample", "_wrapped_call_impl"]
    assert cause[-1] == "forward"


def test_a_step_without_gradients_shows_the_line_that_called_it():
    with torch.no_grad():
        assert frames(step(mean), X, Y) == [["frames"]]


def test_an_error_in_the_backward_shows_no_frame_of_the_engine():
    def in_place(model, x, y):
        out = model(x).exp()
        out_of = out.sum()
        out.add_(1)
        return out_of * out.sum() + (out * 0).sum()

    assert frames(step(in_place), X, Y) == [["frames"], []]


def test_call_with_samples_is_a_boundary_too():
    one = step(fails)
    assert frames(one.call, (X, Y), samples=2) == [["frames", "fails"]]
    assert frames(one.call, X, samples=3) == [["frames"]]
    assert frames(one.call, (X, Y), samples=0) == [["frames"]]


def test_a_wrong_keyword_shows_the_line_that_called_the_step():
    assert frames(step(mean), X, z=Y) == [["frames"]]


def test_the_state_in_a_half_full_window_shows_the_line_that_asked_for_it():
    one = step(mean, accumulate=2)
    one(X, Y)
    assert frames(one.state_dict) == [["frames"]]
    assert frames(one.load_state_dict, {})[0] == ["frames"]


def test_wrong_arguments_of_a_new_step_show_the_line_that_created_it():
    assert frames(step, mean, acumulate=2) == [["frames", "step"]]
    assert frames(step, mean, accumulate=0) == [["frames", "step"]]


def test_all_frames_are_shown_for_debugging():
    set_verbosity("debug")
    try:
        (shown,) = frames(step(fails), X, Y)
    finally:
        set_verbosity("normal")
    assert "_forward_and_backward" in shown

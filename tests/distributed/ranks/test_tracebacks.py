"""Tracebacks of ranks show the user's frames."""

import torch
from torch import nn

from flodl import TrainStep, set_verbosity
from flodl.distributed.ranks.tracebacks import line_of_user, without_own_frames


def check(x):
    raise ValueError("bad label")


def step_fn(model, x):
    try:
        check(x)
    except ValueError as error:
        raise RuntimeError("cannot train") from error


def error_of(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return error
    raise AssertionError


def test_frames_of_flodl_are_left_out_between_those_of_the_user():
    model = nn.Linear(2, 1)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager")
    error = error_of(step, torch.ones(2, 2))
    text = without_own_frames(error)
    assert "ValueError: bad label" in text
    assert "RuntimeError: cannot train" in text
    assert "in step_fn" in text
    assert "flodl/engine" not in text
    assert line_of_user(error).startswith(f"{__file__}, line ")
    assert line_of_user(error).endswith(", in step_fn")


def test_an_error_without_frames_of_the_user_keeps_all_of_them():
    error = error_of(eval, compile("f(1)", "<frozen test>", "eval"), {"f": without_own_frames})
    error.__traceback__ = error.__traceback__.tb_next
    assert "tracebacks.py" in without_own_frames(error)
    assert line_of_user(error) == ""


def wrong_sizes(model, x):
    return model(x.reshape(-1, 5)).mean()


def no_loss(model, x):
    return "loss"


def step_error(step_fn):
    model = nn.Linear(2, 1)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager")
    return error_of(step, torch.ones(2, 2))


def test_an_flodl_error_shows_only_the_frames_of_the_user_that_led_to_it():
    text = without_own_frames(step_error(wrong_sizes))
    assert "in wrong_sizes" in text
    assert "StepFunctionError: shape '[-1, 5]' is invalid" in text
    assert "src/flodl/" not in text


def test_an_flodl_error_without_frames_of_the_user_has_no_traceback():
    assert without_own_frames(step_error(no_loss).with_traceback(None)) == ""


def test_all_frames_are_shown_for_debugging():
    set_verbosity("debug")
    try:
        assert "src/flodl/engine/step.py" in without_own_frames(step_error(wrong_sizes))
    finally:
        set_verbosity("normal")

"""Metrics get `model(x)` and `y`: a step function that prepares one of them is reported."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flodl.core import TrainError
from flodl.train import ClassAccuracy

X, Y = torch.rand(12, 2, 3), torch.arange(12) % 3
INPUTS, CLASSES = "but the step function calls the model with", "gets other classes"


def classifier():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 4))


def run(make, step_fn, *, data=(X, Y), evaluates_only=False, **settings):
    trainer = make(classifier(), step_fn, metrics={"by_class": ClassAccuracy(4)}, **settings)
    if evaluates_only:
        trainer.evaluate(data, batch_size=4)
        trainer.evaluate(data, batch_size=4)
    else:
        trainer.fit(data, epochs=2, batch_size=4, eval_data=data)


@pytest.mark.parametrize("evaluates_only", [True, False])
def test_a_step_function_that_prepares_the_input_is_reported_once(make, capsys, evaluates_only):
    run(make, lambda m, x, y: cross_entropy(m((x - 0.5) / 0.3), y), evaluates_only=evaluates_only)
    told = capsys.readouterr().err
    assert told.count(f"{INPUTS} other values of the same shape") == 1
    assert "outputs=lambda model, x, y: (model(…), y)" in told


@pytest.mark.parametrize(
    "step_fn",
    [
        lambda m, x, y: cross_entropy(m(x), y),
        lambda m, x, y: cross_entropy(m(input=x), y),
        lambda m, x, y: cross_entropy(m(x.flatten(1)), y),  # the same predictions
        lambda m, x, y: cross_entropy(m(x), y) + m(x + 1).square().mean(),
        lambda m, x, y: cross_entropy(m[1](x.flatten(1)), y),
        lambda m, x, y: cross_entropy(m(x + torch.randn_like(x) if m.training else x), y),
        lambda m, x, y: cross_entropy(m(x), torch.where(y == 2, -100, y)),
        lambda m, x, y: cross_entropy(m(x), nn.functional.one_hot(y, 4).float()),
    ],
)
def test_a_step_function_with_the_same_predictions_and_targets_is_not_reported(make, capsys, step_fn):
    run(make, step_fn)
    assert capsys.readouterr().err == ""


def test_a_step_function_that_shifts_the_classes_is_reported_once(make, capsys):
    run(make, lambda m, x, y: cross_entropy(m(x), y - 1), data=(X, Y + 1))
    told = capsys.readouterr().err
    assert told.count(CLASSES) == 1
    assert INPUTS not in told


def test_outputs_that_do_the_same_are_not_reported(make, capsys):
    def outputs(model, x, y):
        return model(x - 0.5), y

    run(make, lambda m, x, y: cross_entropy(m(x - 0.5), y), outputs=outputs)
    assert capsys.readouterr().err == ""


def test_a_model_that_fails_without_the_preparation_is_explained(make):
    with pytest.raises(TrainError) as raised:
        run(make, lambda m, x, y: cross_entropy(m(x.float() / 255), y), data=((X * 255).byte(), Y))
    told = str(raised.value)
    assert told.startswith("metrics need predictions, and model(x) fails with the first part of the batch: ")
    assert "The step function calls the model with float32 [4, 2, 3] instead of uint8 [4, 2, 3]." in told


def squared(model, x, y):
    return (model(x).squeeze(1) - y).square().mean()


@pytest.mark.parametrize("trains", [True, False])
def test_targets_of_another_shape_in_an_evaluation_are_reported_once(make, capsys, trains):
    x, y = torch.rand(12, 3), torch.rand(12)
    trainer = make(nn.Linear(3, 1), squared)
    if trains:
        trainer.fit((x, y), epochs=1, batch_size=4, eval_data=(x, y))
    trainer.evaluate((x, y), batch_size=4)
    assert capsys.readouterr().err == ""
    for _ in range(2):
        trainer.evaluate((x, y[:, None]), batch_size=4)
    assert capsys.readouterr().err.count("tensors of shape [4, 1] and [4] broadcast to [4, 4]") == 1

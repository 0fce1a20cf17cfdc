"""A step function that does not match its batches is reported; its own errors are raised unchanged."""

import pytest
from torch import nn

from flodl.core import StepError


def too_few(model, x):
    return model(x).mean()


def too_many(model, x, y, weights):
    return model(x).mean()


def for_parts(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def test_a_step_function_with_too_few_arguments_raises_with_the_right_signature(make, data):
    with pytest.raises(StepError) as caught:
        make(step_fn=too_few).fit(data, epochs=1, batch_size=8)
    assert str(caught.value) == (
        "the step function too_few(model, x) is called with the model and the 2 parts of a batch "
        "(a tensor of shape (8, 3), a tensor of shape (8, 1)): too many positional arguments. "
        "Write def too_few(model, x, y), or pass data with as many parts as it takes."
    )


@pytest.mark.parametrize(
    ("step_fn", "source", "words"),
    [
        (too_many, "tuple", r"missing a required argument: 'weights'. Write def too_many\(model, x, y\)"),
        (
            for_parts,
            "dict",
            r"one batch .*\(a dict with 'x', 'y'\): .*'y'. Write def for_parts\(model, batch\)",
        ),
        (lambda model: model, "tuple", r"the step function <lambda>\(model\) .*Write def step_fn\(model, x"),
    ],
)
@pytest.mark.parametrize("method", ["fit", "step", "evaluate"])
def test_a_mismatch_is_reported_by_every_method(make, data, step_fn, source, words, method):
    given = data if source == "tuple" else {"x": data[0], "y": data[1]}
    trainer = make(step_fn=step_fn)
    calls = {
        "fit": lambda: trainer.fit(given, epochs=1, batch_size=8),
        "step": lambda: trainer.step(given),
        "evaluate": lambda: trainer.evaluate(given, batch_size=8),
    }
    with pytest.raises(StepError, match=words):
        calls[method]()


@pytest.mark.parametrize("method", ["step", "evaluate"])
def test_an_error_inside_the_function_is_raised_unchanged(make, data, method):
    def inner(x):
        return x

    def wrong_inside(model, x, y):
        return inner(model(x), y).mean()

    trainer = make(step_fn=wrong_inside)
    with pytest.raises(TypeError, match="inner"):
        trainer.step(data) if method == "step" else trainer.evaluate(data, batch_size=8)


def test_a_step_without_a_batch_raises_with_advice(make):
    with pytest.raises(
        StepError, match=r"without a batch. Write trainer.step\(batch\), or trainer.step\(x, y\)"
    ):
        make().step()


def test_a_step_function_with_the_model_last_is_an_error(make, data):
    with pytest.raises(StepError, match=r"takes \(x, y, model\), .* Write def step_fn\(model, x, y\)"):
        make(step_fn=lambda x, y, model: (model(x) - y).mean()).fit(data, epochs=1, batch_size=8)


@pytest.mark.parametrize("evaluates", [False, True])
def test_float64_data_for_a_float32_model_is_explained_in_training_and_evaluation(make, data, evaluates):
    doubles = tuple(part.double() for part in data)
    with pytest.raises(StepError, match=r"The model computes in float32. Convert the data once"):
        make().evaluate(doubles) if evaluates else make().fit(doubles, epochs=1, batch_size=8)

"""A step function that does not match its batches is reported; its own errors are raised unchanged."""

import pytest
import torch
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


WRONG_RESULTS = {
    "nothing": (lambda loss, scores: None, "did not reach its return statement, or what it returns is None"),
    "a dict": (lambda loss, scores: {"loss": loss}, "Return the loss first"),
    "scores": (lambda loss, scores: (loss, scores), "the second item .* is a Tensor"),
    "three items": (lambda loss, scores: (loss, scores, scores), "It returned 3 items"),
    "no values": (lambda loss, scores: (loss, None), "the second item .* is a NoneType"),
    "a value that is None": (lambda loss, scores: (loss, {"a": None}), "returned 'a' as None"),
    "a value that is text": (lambda loss, scores: (loss, {"a": "s"}), "returned 'a' as 's'"),
    "a list": (lambda loss, scores: [loss, {}], "It returned 2 items"),
    "a name that is a number": (lambda loss, scores: (loss, {1: 2.0}), "a value named 1"),
    "many losses": (lambda loss, scores: loss.repeat(3), r"shape \(3,\).*loss.mean\(\)"),
}


@pytest.mark.parametrize(("result", "words"), WRONG_RESULTS.values(), ids=WRONG_RESULTS)
def test_a_wrong_result_of_the_step_function_is_explained_in_fit_and_in_evaluate(make, data, result, words):
    def step_fn(model, x, y):
        scores = model(x)
        return result(nn.functional.mse_loss(scores, y), scores)

    for eval_data in (None, data):
        with pytest.raises(StepError, match=words):
            make(step_fn=step_fn).fit(data, epochs=1, batch_size=8, eval_data=eval_data)
    with pytest.raises(StepError, match=words):
        make(step_fn=step_fn).evaluate(data, batch_size=8)


def test_an_evaluation_accepts_a_loss_that_is_a_plain_number(make, data):
    def step_fn(model, x, y):
        loss = nn.functional.mse_loss(model(x), y)
        return loss if model.training else (loss.item(), {"twice": 2 * loss.item()})

    found = make(step_fn=step_fn).evaluate(data, batch_size=8)
    assert found["twice"] == pytest.approx(2 * found["loss"])


@pytest.mark.parametrize("has_eval_data", [False, True])
def test_a_backward_in_the_step_function_is_to_be_removed(make, data, has_eval_data):
    def step_fn(model, x, y):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    with pytest.raises(
        StepError, match=r"calls backward.. itself: remove that call and just return the loss"
    ):
        make(step_fn=step_fn).fit(data, epochs=1, batch_size=8, eval_data=data if has_eval_data else None)


def test_gradients_of_inputs_in_an_evaluation_are_to_be_enabled(make, data):
    def step_fn(model, x, y):
        loss = nn.functional.mse_loss(model(x), y)
        torch.autograd.grad(loss, [*model.parameters()])
        return loss

    with pytest.raises(RuntimeError, match="does not require grad") as caught:
        make(step_fn=step_fn).evaluate(data, batch_size=8)
    assert "torch.enable_grad()" in "".join(caught.value.__notes__)

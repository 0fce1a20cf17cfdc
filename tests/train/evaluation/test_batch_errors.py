"""An error of the step function is explained by the batch."""

import pytest
import torch
from torch import nn

from flodl.core import StepError


def classify(model, x, y):
    return nn.functional.cross_entropy(model(x), y)


@pytest.mark.parametrize("evaluates", [False, True])
def test_float64_data_for_a_float32_model_is_an_error_with_both_dtypes(make, data, evaluates):
    x, y = (part.double() for part in data)
    expected = (
        r"'x' of the batch has dtype float64, and the model computes in float32 .* x.to\(torch.float32\)"
    )
    with pytest.raises(StepError, match=expected):
        make().evaluate((x, y)) if evaluates else make().fit((x, y), epochs=1, batch_size=8)


def test_integers_for_a_model_that_needs_floats_are_an_error(make, data):
    with pytest.raises(
        StepError, match="'x' of the batch has dtype int64, and the model computes in float32"
    ):
        make().fit((data[0].long(), data[1]), epochs=1, batch_size=8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_class_indices_of_a_wrong_dtype_are_an_error(make, data, dtype):
    targets = torch.zeros(len(data[0]), dtype=dtype)
    with pytest.raises(
        StepError, match=r"'y' of the batch has dtype (float32|int32), .* Convert the data: y.long\(\)"
    ):
        make(nn.Linear(3, 2), classify).fit((data[0], targets), epochs=1, batch_size=8)


def test_a_step_function_with_the_model_last_is_an_error(make, data):
    with pytest.raises(StepError, match=r"takes \(x, y, model\), .* Write def step_fn\(model, x, y\)"):
        make(step_fn=lambda x, y, model: (model(x) - y).mean()).fit(data, epochs=1, batch_size=8)


def test_a_step_function_that_calls_backward_is_an_error(make, data):
    def eager(model, x, y):
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    with pytest.raises(StepError, match=r"If the step function calls loss.backward\(\) .*, remove that"):
        make(step_fn=eager).fit(data, epochs=1, batch_size=8)


def test_any_other_error_keeps_its_type_and_gets_a_note_about_the_batch(make, data):
    targets = torch.full((len(data[0]),), 7)
    with pytest.raises(IndexError) as caught:
        make(nn.Linear(3, 2), classify).fit((data[0], targets), epochs=1, batch_size=8)
    assert caught.value.__notes__ == [
        "The step function was called with the Linear (float32 on cpu) and x: shape (8, 3), float32 on cpu; "
        "y: shape (8,), int64 on cpu, values from 7 to 7."
    ]


def test_an_error_of_the_users_own_kind_is_unchanged(make, data):
    class Mine(ValueError):
        pass

    def failing(model, x, y):
        raise Mine("no")

    with pytest.raises(Mine) as caught:
        make(step_fn=failing).fit(data, epochs=1, batch_size=8)
    assert not hasattr(caught.value, "__notes__")

"""A loss in place of a step function is rejected at once."""

import pytest
from torch import nn

from flodl.core import TrainError


@pytest.mark.parametrize(
    ("step_fn", "message"),
    [
        (nn.MSELoss(), r"is MSELoss\(\), a loss. .* return criterion\(model\(x\), y\)"),
        (nn.MSELoss, r"is the class MSELoss. .* return MSELoss\(\)\(model\(x\), y\)"),
        (nn.functional.mse_loss, r"is torch's mse_loss. .* return mse_loss\(model\(x\), y\)"),
    ],
)
def test_a_loss_in_place_of_a_step_function_is_an_error(make, step_fn, message):
    with pytest.raises(TrainError, match=message):
        make(step_fn=step_fn)


def test_a_module_that_takes_the_model_is_a_step_function(make, data):
    class Loss(nn.Module):
        def forward(self, model, x, y):
            return (model(x) - y).square().mean()

    assert make(step_fn=Loss()).fit(data, epochs=1, batch_size=8).steps == 3

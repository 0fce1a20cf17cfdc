"""A loss that is NaN only in the evaluation is reported, once."""

import pytest
import torch


def with_nan(data):
    x = data[0].clone()
    x[3] = torch.nan
    return x, data[1]


@pytest.mark.parametrize("settings", [{}, {"ema": 0.9}])
def test_nan_in_the_evaluation_data_is_reported_once_with_the_metric_and_the_epoch(
    make, data, capsys, settings
):
    make(**settings).fit(data, epochs=3, batch_size=5, eval_data=with_nan(data))
    shown = capsys.readouterr().err
    assert shown.count("eval_loss is NaN in epoch 1, and the training loss is") == 1
    assert "epoch 2" not in shown


def test_numbers_are_not_reported_and_neither_is_a_training_loss_that_is_nan_too(make, data, capsys):
    make().fit(data, epochs=2, batch_size=5, eval_data=data)
    make(nan="skip").fit(with_nan(data), epochs=2, batch_size=20, eval_data=with_nan(data))
    assert "eval_loss is NaN" not in capsys.readouterr().err

"""Named values of the step function that are NaN."""

import torch


def test_a_value_that_is_nan_is_reported_once(make, data, capsys):
    def step(model, x, y):
        return (model(x) - y).square().mean(), {"gap": torch.tensor(float("nan"))}

    make(step_fn=step).fit(data, epochs=2, batch_size=8)
    told = capsys.readouterr()
    assert (told.out + told.err).count("the mean of 'gap' is NaN in epoch 1 and the training loss is") == 1

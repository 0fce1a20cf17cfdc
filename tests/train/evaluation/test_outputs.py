"""What a trainer says about `outputs=` fits the batches."""

import pytest
import torch
from torch import nn

from flodl.core import TrainError
from flodl.train import ClassF1

WEIGHTED = torch.randn(8, 3), torch.ones(8), torch.zeros(8, dtype=torch.int64)


def weighted_loss(model, x, weight, y):
    return (nn.functional.cross_entropy(model(x), y, reduction="none") * weight).mean()


def evaluate(make, **settings):
    trainer = make(nn.Linear(3, 2), weighted_loss, metrics={"f1": ClassF1(2)}, **settings)
    return trainer.evaluate(WEIGHTED, batch_size=4)


def test_the_advice_for_a_batch_of_three_parts_has_their_names(make):
    advice = r"has 3 parts, not two\. Define them: outputs=lambda model, x, weight, y: \(model\(x\), y\)\."
    with pytest.raises(TrainError, match=advice):
        evaluate(make)
    assert "f1" in evaluate(make, outputs=lambda model, x, weight, y: (model(x), y))


def test_outputs_with_other_arguments_than_the_batch_has_are_an_error_with_advice(make):
    with pytest.raises(
        TrainError, match=r"outputs is called like the step function.*the 3 parts.*lambda model, x, weight, y"
    ):
        evaluate(make, outputs=lambda model, batch: (model(batch[0]), batch[2]))


def test_a_type_error_inside_outputs_stays_as_it_is(make):
    with pytest.raises(TypeError, match="unsupported operand"):
        evaluate(make, outputs=lambda model, x, weight, y: (model(x) + "a", y))

"""Errors of a model that was called with the wrong arguments, or with sequences of length 0."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from flodl.engine import TrainStep
from flodl.engine.errors import StepFunctionError
from flodl.engine.mistakes.advice.model_call import advice_for_call


class Net(nn.Module):
    """A recurrent network for padded sequences and their lengths."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.gru(packed)[1][0]


X, LENGTHS, LABELS = torch.randn(8, 5, 3), torch.full((8,), 5), torch.zeros(8, dtype=torch.long)


def new_step(step_fn):
    model = Net()
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager")


def loss_of(model, x, n, y):
    return nn.functional.cross_entropy(model(x, n), y)


@pytest.mark.parametrize(
    ("empty", "told"),
    [([3], "Sample 3 of this batch has"), ([0, 2, 7], "Samples 0, 2, 7 of this batch have")],
)
@pytest.mark.parametrize("is_list", [False, True])
def test_samples_of_length_0_are_named(empty, told, is_list):
    lengths = LENGTHS.clone()
    lengths[empty] = 0
    with pytest.raises(StepFunctionError) as caught:
        new_step(loss_of)(X, lengths.tolist() if is_list else lengths, LABELS)
    assert f"{told} length 0. Leave samples without elements out of the data" in str(caught.value)
    assert "order of the arguments" not in str(caught.value)


def test_a_call_without_an_argument_says_what_the_model_takes():
    with pytest.raises(StepFunctionError, match=r"The model takes \(x, lengths\): call it as model\(x, l"):
        new_step(lambda model, x, n, y: model(x).mean())(X, LENGTHS, LABELS)


def test_a_wrong_call_of_another_module_is_not_about_the_model():
    assert advice_for_call("GRU.forward() missing 1 required positional argument: 'input'", Net()) == ""


def test_class_weights_of_the_wrong_length_are_not_blamed_on_the_order_of_arguments():
    def weighted(model, x, n, y):
        return nn.functional.cross_entropy(model(x, n), y, weight=torch.ones(3))

    with pytest.raises(StepFunctionError, match=r"Give it one value for each class: shape \[4\]") as caught:
        new_step(weighted)(X, LENGTHS, LABELS)
    assert "order of the arguments" not in str(caught.value)


def test_the_note_of_an_unknown_error_says_what_each_argument_is_without_advice():
    def invalid(model, x, n, y):
        return nn.functional.dropout(model(x, n), p=2.0).mean()

    with pytest.raises(ValueError, match="dropout probability") as caught:
        new_step(invalid)(X, LENGTHS, LABELS)
    (note,) = caught.value.__notes__
    assert note.endswith(" In this call, x is float32 [8, 5, 3], n is int64 [8] and y is int64 [8].")

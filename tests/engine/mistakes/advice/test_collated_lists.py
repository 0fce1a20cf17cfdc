"""Samples with lists of numbers, which are collated into lists of tensors."""

import pytest
import torch
from torch import nn
from torch.utils.data import default_collate

from flodl import TrainStep
from flodl.engine.errors import StepFunctionError


class Sized(nn.Embedding):
    def forward(self, ids):
        ids.size()
        return super().forward(ids)


def run(model, *batch):
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager")
    return step(*batch)


def step_fn(model, batch, *rest):
    return model(batch["input_ids"] if isinstance(batch, dict) else batch).mean()


@pytest.mark.parametrize("kind", [nn.Embedding, Sized])
def test_token_lists_that_were_collated_by_position_are_explained(kind):
    batch = default_collate([{"input_ids": [1, 2, 3, 4], "labels": 0}] * 3)
    message = r"The part 'input_ids' of the batch is a list of 4 tensors.*collate=…"
    with pytest.raises(StepFunctionError, match=message) as raised:
        run(kind(9, 1), batch)
    assert "as_tensor" not in str(raised.value)


def test_lists_in_tuples_are_explained():
    with pytest.raises(StepFunctionError, match="A part of the batch is a list of 3 tensors"):
        run(nn.Embedding(9, 1), *default_collate([([1, 2, 3], 0)] * 2))


def test_several_inputs_in_a_list_are_passed_one_by_one():
    with pytest.raises(StepFunctionError, match=r"pass them to the model one by one, as in x\[0\]"):
        run(nn.Embedding(9, 1), [torch.zeros(2, 3).long(), torch.zeros(2, 3).long()])


@pytest.mark.parametrize("numbers", [[1, 2], [[1], [2]]])
def test_lists_of_numbers_are_converted(numbers):
    with pytest.raises(StepFunctionError, match=r"Convert the batch to tensors: torch.as_tensor\(x\)"):
        run(nn.Embedding(9, 1), numbers)


@pytest.mark.parametrize(("batch", "advice"), [(["a"], "with a tokenizer"), (None, "Pass a tensor")])
def test_what_cannot_be_converted_gets_other_advice(batch, advice):
    with pytest.raises(StepFunctionError, match=advice) as raised:
        run(nn.Embedding(9, 1), batch)
    assert "as_tensor" not in str(raised.value)

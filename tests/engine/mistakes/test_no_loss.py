"""A step function that returns None: the error says why, as far as its code, the model and the batch tell."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from flodl.core import StepError
from flodl.engine import TrainStep
from flodl.engine.errors import NoLoss

X = torch.zeros(4, 3)


def message_of(step_fn, batch, model: nn.Module | None = None) -> str:
    model = model or nn.Linear(3, 1)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager")
    with pytest.raises(NoLoss) as raised:
        step(*batch)
    assert isinstance(raised.value, StepError)
    return str(raised.value)


def forgets_to_return(model, x):
    model(x).mean()


def returns_early(model, x):
    if not x.any():
        return
    model(x).mean()


def returns_sometimes(model, x):
    with torch.enable_grad():
        if x.any():
            return model(x).mean()
    return None


class Step:
    def __call__(self, model, x):
        model(x).mean()


class StepModule(nn.Module):
    def forward(self, model, x):
        model(x).mean()


@pytest.mark.parametrize(
    "step_fn",
    [forgets_to_return, returns_early, functools.partial(forgets_to_return), Step(), StepModule()],
)
def test_a_function_without_a_return_statement_is_told_so(step_fn) -> None:
    assert message_of(step_fn, (X,)).endswith("It lacks a return statement with a value.")


@pytest.mark.parametrize("step_fn", [returns_sometimes, lambda model, x: {"loss": None}["loss"]])
def test_a_function_with_a_return_statement_is_not_said_to_lack_one(step_fn) -> None:
    message = message_of(step_fn, (X,))
    assert "lacks" not in message
    assert "Either it did not reach its return statement, or what it returns is None." in message


def test_none_with_named_values_is_reported_as_a_missing_loss() -> None:
    assert "returned None in place of the loss" in message_of(lambda model, x: (None, {"a": 1.0}), (X,))


@pytest.fixture(scope="module")
def bert():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    return transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=9, **sizes))


IDS = torch.zeros(4, 3, dtype=torch.long)


@pytest.mark.parametrize(
    ("step_fn", "batch", "words"),
    [
        (
            lambda model, batch: model(**batch).loss,
            ({"input_ids": IDS},),
            "only if it is called with labels, and the batch has no 'labels': it has 'input_ids'. Add",
        ),
        (
            lambda model, **batch: model(batch["input_ids"]).loss,
            ({"input_ids": IDS, "label": IDS[:, 0]},),
            "it has 'input_ids', 'label'. Rename 'label' to 'labels'.",
        ),
        (
            lambda model, batch: model(batch["input_ids"]).loss,
            ({"input_ids": IDS, "labels": IDS[:, 0]},),
            "the batch has 'labels', so pass them to the model.",
        ),
        (
            lambda model, x, y: model(x).loss,
            (IDS, IDS[:, 0]),
            "as in model(x, labels=y).loss; the batch is (int64 [4, 3], int64 [4]).",
        ),
    ],
)
def test_a_model_of_transformers_without_labels_has_no_loss(bert, step_fn, batch, words: str) -> None:
    message = message_of(step_fn, batch, bert)
    assert words in message
    assert "return statement" not in message

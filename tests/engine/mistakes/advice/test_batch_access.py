"""A step function that reads the batch in a wrong way is told what the batch is; its other errors stay."""

from __future__ import annotations

from collections import UserDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flodl.engine import TrainStep
from flodl.engine.errors import StepFunctionError

X, Y = torch.rand(8, 4), torch.rand(8, 3)
NAMED = {"image": X, "target": Y}


def run(step_fn, *batch) -> None:
    model = nn.Linear(4, 3)
    TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager")(*batch)


def unpacks(model, batch):
    x, y = batch
    return F.mse_loss(model(x.flatten(1)), y)


def unpacks_for_the_model(model, batch):
    x, y = batch
    return F.mse_loss(model(x), y)


def like_lightning(model, batch, batch_idx):
    x, y = batch
    return F.mse_loss(model(x), y)


def by_variable(model, batch):
    key = "images"
    return model(batch[key]).mean()


def through_a_function(model, batch):
    return like_a_method(model, batch)


def like_a_method(model, parts):
    return model(parts["images"]).mean()


NO_KEY = (
    r"the batch has no key 'images', in the step function .* keys 'image', 'target'. Did you mean 'image'\?"
)


@pytest.mark.parametrize(
    ("step_fn", "batch", "message"),
    [
        (lambda model, b: model(b["images"]).mean(), (NAMED,), NO_KEY),
        (lambda model, b: model(b["images"]).mean(), (UserDict(NAMED),), NO_KEY),
        (lambda model, b, y: model(b["images"]).mean(), (NAMED, Y), NO_KEY),
        (lambda model, b: model(b["inner"]["images"]).mean(), ({"inner": NAMED},), NO_KEY),
        (lambda model, **b: model(b["images"]).mean(), (NAMED,), NO_KEY),
        (by_variable, (NAMED,), NO_KEY),
        (through_a_function, (NAMED,), NO_KEY),
        (
            lambda model, b: model(b[0]).mean(),
            (NAMED,),
            r"no key 0, .* a dict with the keys 'image', 'target'\.",
        ),
        (
            lambda model, b: model(b.image).mean(),
            (NAMED,),
            r"is a dict, which has no attribute 'image', .*: write batch\['image'\]",
        ),
        (
            lambda model, b: model(b.to("cpu")).mean(),
            (NAMED,),
            r"no attribute 'to', .*: write batch\['image'\]",
        ),
        (
            unpacks,
            (NAMED,),
            r"'image', is used as a tensor.*gives its keys.*x, y = batch\['image'\], batch\[",
        ),
        (
            unpacks_for_the_model,
            (NAMED,),
            r"not str, in the step function.*gives its keys \('image', 'target'\)",
        ),
        (
            unpacks,
            ({**NAMED, "mask": Y},),
            r"too many values to unpack.*gives its keys \('image', 'target', 'm",
        ),
        (
            like_lightning,
            (X, Y),
            r"receives the columns of the batch as separate arguments: batch is float32 \[8, 4\] and",
        ),
        (unpacks, (X,), r"The batch is one tensor, .*pass the data as \(x, y\)"),
    ],
)
def test_a_batch_that_is_read_in_a_wrong_way_is_described(step_fn, batch, message: str) -> None:
    with pytest.raises(StepFunctionError, match=message) as raised:
        run(step_fn, *batch)
    assert raised.value.__cause__ is not None


OWN = {"weights": 1.0}


def own_dict(model, batch):
    table = {"image": 1.0}
    return model(batch["image"]).mean() * table["images"]


def global_dict(model, batch):
    return model(batch["image"]).mean() * OWN["images"]


def dict_of_an_output(model, batch):
    return {"logits": model(batch["image"])}["images"]


def own_string(model, batch):
    return model(batch["image"]).mean() * "mean".flatten()


def own_tuple(model, batch):
    first, second = (1, 2, 3)
    return model(batch["image"]).mean() * first * second


@pytest.mark.parametrize(
    ("step_fn", "kind"),
    [
        (own_dict, KeyError),
        (global_dict, KeyError),
        (dict_of_an_output, KeyError),
        (own_string, AttributeError),
        (own_tuple, ValueError),
    ],
)
def test_errors_about_other_objects_are_not_blamed_on_the_batch(step_fn, kind) -> None:
    with pytest.raises(kind) as raised:
        run(step_fn, NAMED)
    assert not isinstance(raised.value, StepFunctionError)


@pytest.mark.parametrize("keys", ["xy", "yx"])
def test_a_dict_that_is_unpacked_into_its_keys_is_named(keys: str) -> None:
    named = {"x": X, "y": Y}
    with pytest.raises(
        StepFunctionError, match=r"the strings '[xy]' and '[xy]', .*Write step\(\*\*batch\)\."
    ):
        run(lambda model, x, y: F.mse_loss(model(x), y), *{key: named[key] for key in keys})


def test_texts_in_a_batch_are_not_called_keys() -> None:
    with pytest.raises(StepFunctionError, match="Models take numbers: encode texts as tensors"):
        run(lambda model, x, y: F.mse_loss(model(x), y), "a text", "another")


def test_logits_of_a_tensor_are_explained() -> None:
    with pytest.raises(StepFunctionError, match=r"The model returns a tensor, .*: remove \.logits\."):
        run(lambda model, x, y: F.mse_loss(model(x).logits, y), X, Y)

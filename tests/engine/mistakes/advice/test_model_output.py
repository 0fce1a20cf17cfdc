"""A loss that gets all outputs of a model: the error names the output to pass."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flodl import FlowBuilder, TrainStep
from flodl.core import FlodlError

X, Y = torch.randn(6, 4), torch.randint(0, 3, (6,))


@dataclass
class Output:
    hidden: Tensor
    logits: Tensor


Pair = namedtuple("Pair", ["logits", "hidden"])


class Model(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.make = make

    def forward(self, x):
        return self.make(x, self.linear(x))


def entropy(model, x, y):
    return F.cross_entropy(model(x), y)


def squared(model, x, y):
    output = model(x)
    return (output - y[:, None]).square().mean()


def mse(model, x, y):
    return F.mse_loss(model(x), y.float())


def message(model, step_fn):
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn)
    with pytest.raises(FlodlError) as caught:
        step(X, Y)
    return str(caught.value)


@pytest.mark.parametrize("step_fn", [entropy, squared, mse])
@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (
            lambda x, y: {"hidden": x, "logits": y},
            "a dict with the keys 'hidden', 'logits'.*model(x)['logits']",
        ),
        (Output, "an Output with the fields 'hidden', 'logits'.*model(x).logits"),
        (lambda x, y: Pair(y, x), "a Pair with the fields 'logits', 'hidden'.*model(x).logits"),
        (lambda x, y: (y, x, x), "a tuple of 3: .*model(x)[0]"),
    ],
)
def test_the_output_to_use_is_named(make, advice, step_fn):
    first, _, last = advice.partition(".*")
    told = message(Model(make), step_fn)
    assert f"The model returns {first}" in told
    assert last in told


def test_a_graph_with_named_outputs_is_explained():
    flow = FlowBuilder(nn.Linear(4, 8)).split({"value": nn.Linear(8, 1), "logits": nn.Linear(8, 3)})
    assert "model(x)['logits']" in message(flow.output("value", "logits").build(), entropy)


def test_an_output_that_is_used_at_once_is_explained_by_its_type():
    told = message(Model(lambda x, y: {"logits": y}), lambda model, x, y: (model(x) - x).mean())
    assert "If the model returns a dict, pass one of its parts" in told


def test_other_mistakes_with_dicts_are_not_blamed_on_the_model():
    weights = {"a": torch.ones(3)}
    model = Model(lambda x, y: y)
    step = TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x, y: m(x).sum() * weights.a
    )
    with pytest.raises(AttributeError, match="'dict' object has no attribute 'a'"):
        step(X, Y)
    inner = nn.Sequential(Model(lambda x, y: {"logits": y}), nn.Linear(3, 3))
    assert "The model returns" not in message(inner, entropy)

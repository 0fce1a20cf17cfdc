"""What several devices do differently from one is said at the start."""

from functools import partial

import pytest
import torch
from torch import nn

from flodl.hf import AutoModelForSequenceClassification, AutoModelForTokenClassification, compute_loss
from flodl.hf.data.tiny import create_tiny
from flodl.train.evaluation.pieces import Pieces
from flodl.train.ranks.notes import differs_from_one_device, state_outside_model

COUNT = 0
WEIGHTED = nn.CrossEntropyLoss(weight=torch.ones(2))
SUMMED = nn.MSELoss(reduction="sum")
PLAIN = nn.CrossEntropyLoss()


def plain_loss(model, x, y):
    return PLAIN(model(x), y)


def weighted_loss(model, x, y):
    return WEIGHTED(model(x), y)


def summed_loss(model, x, y):
    return SUMMED(model(x), y)


def counting_loss(model, x, y):
    global COUNT
    COUNT += 1
    return PLAIN(model(x), y)


def notes(model, step_fn):
    return "\n".join(differs_from_one_device(model, step_fn))


def warnings(model, step_fn):
    return "\n".join(state_outside_model(model, step_fn))


def test_a_plain_model_and_loss_have_no_notes():
    for model in (nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), nn.BatchNorm1d(2).eval()):
        assert not notes(model, plain_loss)
        assert not warnings(model, plain_loss)


def test_batch_norm_is_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    assert notes(model, plain_loss).count("BatchNorm1d ('1') normalizes with the statistics of each") == 1


@pytest.mark.parametrize(
    ("step_fn", "what"),
    [
        (weighted_loss, "WEIGHTED is a mean weighted by class"),
        (summed_loss, "SUMMED is a sum"),
        (partial(summed_loss), "SUMMED is a sum"),
    ],
)
def test_a_loss_that_does_not_average_over_samples_is_named(step_fn, what):
    assert what in notes(nn.Linear(2, 2), step_fn)


def test_a_sum_always_differs():
    assert "the numbers always differ" in notes(nn.Linear(2, 2), summed_loss)
    assert "if samples count differently" in notes(nn.Linear(2, 2), weighted_loss)


def test_heads_whose_loss_is_a_mean_over_tokens_are_named(tmp_path):
    path = tmp_path / "tiny"
    create_tiny(path, ["a film", "b"])
    tagger = AutoModelForTokenClassification.from_pretrained(path, num_labels=2)
    assert "a mean over labeled tokens" in notes(tagger, compute_loss)
    assert not notes(AutoModelForSequenceClassification.from_pretrained(path, num_labels=2), compute_loss)


def test_variables_that_the_step_function_assigns_are_named():
    assert "the step function changes 'COUNT'" in warnings(nn.Linear(2, 2), counting_loss)
    state = {"calls": 0}

    def step_fn(model, x):
        state["calls"] += 1
        inner = [0]
        inner[0] += 1
        return model(x).mean()

    assert "changes 'state'." in warnings(nn.Linear(2, 2), step_fn)

    class Loss:
        calls = 0

        def step(self, model, x):
            self.calls += 1
            return model(x).mean()

    assert "changes 'self.calls'" in warnings(nn.Linear(2, 2), Loss().step)


def test_local_variables_are_not_state():
    def step_fn(model, x):
        total = 0

        def add(value):
            nonlocal total
            total += value

        add(model(x).mean())
        return total

    assert not warnings(nn.Linear(2, 2), step_fn)


def test_what_is_trained_outside_the_model_is_named():
    model, critic, teacher = nn.Linear(2, 2), nn.Linear(2, 1), nn.Linear(2, 2)
    scale = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)

    def step_fn(model, x):
        return critic(model(x)).mean() + scale * teacher(x).mean()

    assert "uses 'critic', 'scale', which is not part of the model" in warnings(model, step_fn)
    assert optimizer is not None
    whole = nn.ModuleList([model, critic])
    assert "uses 'scale'," in warnings(whole, step_fn)


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        (1.0, 2.0, "the loss is a sum"),
        (2.0, 3.5, "the loss of a batch is not the mean of its samples' losses"),
        (2.0, 4.0, ""),
    ],
)
def test_a_loss_of_unknown_kind_is_measured_with_the_pieces_of_a_batch(first, second, what):
    pieces = Pieces({"loss": 3.0}, [{"loss": first}, {"loss": second}], [0.5, 0.5])
    found = "\n".join(differs_from_one_device(nn.Linear(2, 2), plain_loss, lambda: pieces))
    assert (what in found) if what else not found


def test_a_loss_of_known_kind_is_not_measured():
    def fail():
        raise AssertionError

    assert "SUMMED" in "\n".join(differs_from_one_device(nn.Linear(2, 2), summed_loss, fail))

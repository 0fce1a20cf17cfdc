"""A loss with which an accumulation window does not equal one large batch is noted."""

import pytest
import torch
from torch import nn

from flodl import Loader
from flodl.hf import compute_loss
from flodl.hf.data.tiny import create_tiny
from flodl.train.checks.accumulated_loss import differs_from_large_batch

NOTE = "differs from that of one large batch"
WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 1.0]))


def plain_loss(model, x, y):
    return nn.functional.cross_entropy(model(x), y)


def weighted_loss(model, x, y):
    return WEIGHTED(model(x), y)


def hardest_loss(model, x, y):
    return nn.functional.cross_entropy(model(x), y, reduction="none").logsumexp(0)


@pytest.fixture
def told(make, data, capsys):
    def run(step_fn, targets, **settings):
        x = data[0][:12]
        make(nn.Linear(3, 3), step_fn, **settings).fit(Loader((x, targets), 4, shuffle=False), epochs=2)
        return "".join(capsys.readouterr())

    return run


def targets(*, ignored=()):
    found = torch.arange(12) % 3
    found[list(ignored)] = -100
    return found


@pytest.mark.parametrize("step_fn", [weighted_loss, hardest_loss])
def test_a_loss_that_is_not_a_mean_over_samples_is_noted_once_with_accumulate(told, step_fn):
    assert told(step_fn, targets(), accumulate=3).count(NOTE) == 1
    assert NOTE not in told(step_fn, targets())


def test_ignored_targets_are_noted_where_they_change_the_loss(told):
    assert told(plain_loss, targets(ignored=(0, 5)), accumulate=3).count(NOTE) == 1


def test_a_mean_over_samples_is_not_noted(told):
    assert NOTE not in told(plain_loss, targets(), accumulate=3)


def test_a_mean_over_tokens_of_a_head_is_noted(tmp_path):
    tagger = create_tiny(tmp_path / "tags", ["a film", "b"], head="tokcls", labels=["O", "B"])
    assert "accumulate=4: the loss is a mean over labeled tokens" in differs_from_large_batch(
        tagger, compute_loss, 4
    )
    classifier = create_tiny(tmp_path / "classes", ["a film", "b"], head="seqcls", labels=["O", "B"])
    assert not differs_from_large_batch(classifier, compute_loss, 4)

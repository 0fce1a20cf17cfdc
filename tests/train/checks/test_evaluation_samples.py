"""Samplers that belong in the training loader only."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler

from flodl import Loader, Trainer
from flodl.data import WeightedSampler

X = torch.arange(10.0)[:, None]
WEIGHTS = torch.arange(1.0, 11.0)


def trainer():
    return Trainer(
        nn.Linear(1, 1),
        lambda model, x: model(x).square().mean(),
        optimizer=lambda groups: torch.optim.SGD(groups, lr=1e-3),
        device="cpu",
        monitor=False,
    )


@pytest.mark.parametrize(
    "data",
    [
        Loader(X, 5, sampler=WeightedSampler(WEIGHTS)),
        Loader(X, 5, sampler=WeightedSampler(WEIGHTS, num_samples=5, replacement=False)),
        Loader(X, 5, sampler=WeightedRandomSampler(WEIGHTS.tolist(), 10)),
        DataLoader(X, 5, sampler=WeightedRandomSampler(WEIGHTS.tolist(), 10)),
        Loader(DataLoader(X, 5, sampler=WeightedRandomSampler(WEIGHTS.tolist(), 10)), None),
    ],
)
def test_an_evaluation_on_samples_drawn_by_weights_is_reported_once(data, capsys):
    made = trainer()
    for _ in range(2):
        made.evaluate(data)
    err = capsys.readouterr().err
    assert err.count("which draws samples by their weights, so its metrics are not those of the data") == 1


@pytest.mark.parametrize(
    "data",
    [
        Loader(X, 5, sampler=[1, 3, 5]),
        Loader(X, 5, sampler=WeightedSampler(WEIGHTS, replacement=False)),
        Loader(X, 5, sampler=WeightedSampler((WEIGHTS > 5).double(), replacement=False)),
        DataLoader(X, 5, sampler=RandomSampler(X)),
    ],
)
def test_samplers_that_read_chosen_samples_once_are_not_reported(data, capsys):
    trainer().evaluate(data)
    assert capsys.readouterr().err == ""


def test_a_weighted_sampler_in_the_training_loader_is_not_reported(capsys):
    trainer().fit(Loader(X, 5, sampler=WeightedSampler(WEIGHTS)), epochs=1, eval_data=Loader(X, 5))
    assert capsys.readouterr().err == ""

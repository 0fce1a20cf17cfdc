"""Batches in which every tensor is [time, batch, …] weigh as many samples as they have time steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl.engine import TrainStep


class Recurrent(nn.Module):
    def __init__(self, *, transposed: bool = False, batch_first: bool = False) -> None:
        super().__init__()
        self.gru, self.transposed = nn.GRU(3, 1, batch_first=batch_first), transposed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.gru(x.transpose(0, 1) if self.transposed else x)[0]
        return found.transpose(0, 1) if self.transposed else found


def run(model: nn.Module, shapes, *, is_given: bool = False, **settings) -> TrainStep:
    def loss_of(model, x, y):
        return (model(x) - y).square().mean()

    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of, tier="eager", **settings)
    for rows, columns in shapes:
        batch = torch.ones(rows, columns, 3), torch.zeros(rows, columns, 1)
        step.call(batch, samples=columns if is_given else None)
    return step


def test_ragged_time_first_batches_of_a_window_are_a_warning_once(capsys) -> None:
    step = run(Recurrent(), [(7, 16), (7, 2), (7, 16), (7, 3)], accumulate=2)
    step.means()
    told = capsys.readouterr().err
    assert told.count("a batch counts as 7 samples") == 1
    assert "reads them as time steps of 2 samples, and an earlier batch had 16" in told
    assert "step.call((x, y), samples=2)" in told


def test_ragged_time_first_batches_are_a_warning_once_their_means_are_read(capsys) -> None:
    step = run(Recurrent(), [(7, 16), (7, 2)])
    assert capsys.readouterr().err == ""
    step.means()
    assert capsys.readouterr().err.count("a batch counts as 7 samples") == 1


@pytest.mark.parametrize(
    ("model", "shapes", "is_given"),
    [
        (Recurrent(), [(7, 16), (7, 2)], True),
        (Recurrent(), [(7, 16), (5, 16)], False),
        (Recurrent(batch_first=True), [(7, 16), (7, 2)], False),
        (Recurrent(transposed=True), [(7, 16), (7, 2)], False),
        (nn.Linear(3, 1), [(7, 16), (7, 2)], False),
    ],
    ids=["given", "same samples", "batch first", "transposed", "not recurrent"],
)
def test_other_batches_and_given_numbers_of_samples_are_not_a_warning(
    model, shapes, is_given, capsys
) -> None:
    step = run(model, shapes, is_given=is_given, accumulate=2)
    step.means()
    assert capsys.readouterr().err == ""

"""Batches with time steps first count as many samples as they have steps, which is reported if it matters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from flodl.engine import TrainStep
from flodl.engine.batch.samples import pieces_of, why_not_splittable


def new_step(**settings) -> TrainStep:
    model = nn.GRU(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(model, x, lengths, y):
        return (model(x)[0][-1, :, 0] - y).square().mean()

    return TrainStep(model, optimizer, loss_of, tier="eager", **settings)


def batch(steps: int, samples: int = 3) -> tuple[torch.Tensor, ...]:
    return torch.ones(steps, samples, 2), torch.full((samples,), steps), torch.zeros(samples)


def test_time_steps_that_weight_the_micro_batches_of_a_window_are_a_warning_once(capsys) -> None:
    step = new_step(accumulate=2)
    for steps in (5, 7, 4, 6):
        step(*batch(steps))
    told = capsys.readouterr().err
    assert told.count("a batch counts as 7 samples") == 1
    assert "an earlier one as 5, but the other tensors have 3 rows" in told
    assert "step.call((x, y), samples=3)" in told


def test_time_steps_that_weight_the_means_are_a_warning_once_they_are_read(capsys) -> None:
    step = new_step()
    for steps in (5, 7, 4):
        step(*batch(steps))
    assert capsys.readouterr().err == ""
    step.means(), step.means()
    assert capsys.readouterr().err.count("a batch counts as 7 samples") == 1


def test_a_ragged_batch_that_weighs_as_much_as_others_is_a_warning_once(capsys) -> None:
    step = new_step(accumulate=2)
    for samples in (16, 2, 16, 4):
        step(*batch(7, samples))
    told = capsys.readouterr().err
    assert told.count("a batch counts as 7 samples") == 1
    assert "but the other tensors have 2 rows, and those of an earlier batch 16" in told
    assert "step.call((x, y), samples=2)" in told


def test_a_ragged_batch_with_a_given_number_of_samples_is_not_a_warning(capsys) -> None:
    step = new_step(accumulate=2)
    for samples in (16, 2, 16, 4):
        step.call(batch(7, samples), samples=samples)
    step.means()
    assert capsys.readouterr().err == ""


def test_time_steps_that_are_always_as_many_are_not_a_warning(capsys) -> None:
    step = new_step(accumulate=2)
    for _ in range(4):
        step(*batch(5))
    step.means()
    assert capsys.readouterr().err == ""


def test_batches_with_a_given_number_of_samples_are_not_a_warning(capsys) -> None:
    step = new_step(accumulate=2)
    for steps in (5, 7, 4, 6):
        step.call(batch(steps), samples=3)
    step.means()
    assert capsys.readouterr().err == ""


def test_weights_of_features_or_classes_in_a_batch_are_not_a_warning(capsys) -> None:
    model = nn.Linear(3, 3)

    def loss_of(model, x, weights, y=None):
        return ((model(x) - x).square() * weights).mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for labels in ((), (torch.zeros,)):
        step = TrainStep(model, optimizer, loss_of, accumulate=2)
        for rows in (8, 8, 5, 8):
            step(torch.ones(rows, 3), torch.ones(3), *(one(rows) for one in labels))
        step.means()
    assert capsys.readouterr().err == ""


def edges_first(num_samples: int) -> tuple[torch.Tensor, ...]:
    return torch.zeros(2, 7), torch.ones(num_samples, 3), torch.zeros(num_samples)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("last", [32, 22])
def test_a_first_tensor_without_samples_is_a_warning_if_the_others_vary(capsys, accumulate, last) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(model, edges, x, y):
        return (model(x)[:, 0] - y).square().mean()

    step = TrainStep(model, optimizer, loss_of, tier="eager", accumulate=accumulate)
    for num_samples in (32, 32, 32, last):
        step(*edges_first(num_samples))
    step.means()
    told = capsys.readouterr().err
    assert told.count("a batch counts as 2 samples, the rows of its first tensor, but") == (last == 22)
    assert ("put a tensor with one row for each sample first" in told) is (last == 22)


def packed_batches():
    lengths = [[3, 40, 5, 7], [30, 6, 9, 50], [4, 8, 3, 11], [5, 2, 7]]
    generator = torch.Generator().manual_seed(0)
    for each in lengths:
        sequences = [torch.randn(length, 2, generator=generator) for length in each]
        yield (
            nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False),
            torch.tensor(each).remainder(2).float(),
        )


@pytest.mark.parametrize("accumulate", [1, 2])
def test_packed_sequences_are_weighted_by_their_number(accumulate, capsys) -> None:
    def loss_of(model, x, y):
        return (model(x)[1][0, :, 0] - y).square().mean()

    def new_model():
        torch.manual_seed(1)
        return nn.GRU(2, 1)

    model = new_model()
    step = TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.5), loss_of, accumulate=accumulate, tier="eager"
    )
    plain, total = new_model(), 0.0
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    batches = [*packed_batches()]
    for at in range(0, len(batches), accumulate):
        window = batches[at : at + accumulate]
        samples = sum(len(y) for _, y in window)
        optimizer.zero_grad()
        for x, y in window:
            step(x, y)
            loss = loss_of(plain, x, y)
            (loss * (len(y) / samples)).backward()
            total += loss.item() * len(y)
        optimizer.step()
    assert step.means()["loss"].item() == pytest.approx(total / 15)
    for own, other in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(own, other, atol=1e-6)
    assert not [event for event in step.report().events if event.kind == "samples"]
    assert capsys.readouterr().err == ""


def test_packed_sequences_are_not_split_or_padded() -> None:
    batch = next(packed_batches())
    assert why_not_splittable(batch, 4) == "its sequences are packed"
    assert pieces_of(batch) is None


def test_time_steps_are_not_sought_beside_arrays() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = TrainStep(model, optimizer, lambda m, x, y: m(x).square().mean(), tier="eager")
    assert step(torch.randn(7, 4, 3), np.zeros(4)).isfinite()

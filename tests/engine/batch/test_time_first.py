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


class LastStep(nn.Module):
    """A time-first model that returns one row per sample, or one per time step."""

    def __init__(self, kind: str, *, every_step: bool = False) -> None:
        super().__init__()
        self.every_step, self.embed = every_step, nn.Embedding(5, 4) if kind == "tokens" else None
        if kind == "attention":
            self.body = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(4, 1, 8, dropout=0.0), 1, enable_nested_tensor=False
            )
        else:
            self.body = {
                "rnn": nn.RNN,
                "gru": nn.GRU,
                "lstm": nn.LSTM,
                "tokens": nn.GRU,
                "linear": nn.Linear,
            }[kind](4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.body(x if self.embed is None else self.embed(x))
        found = found[0] if isinstance(found, tuple) else found
        return found[..., :2] if self.every_step else found[-1, :, :2]


def train_last_step(model: LastStep, label_shape: tuple[int, ...], steps=(5, 7, 4), **settings) -> TrainStep:
    def loss_of(model, x, y):
        out = model(x)
        out = out[-1] if model.every_step else out
        return (out - y.reshape(len(y), -1)).square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = TrainStep(model, optimizer, loss_of, tier="eager", **settings)
    for length in steps:
        x = torch.ones(length, 3, 4) if model.embed is None else torch.ones(length, 3).long()
        step(x, torch.zeros(label_shape))
    return step


@pytest.mark.parametrize("label_shape", [(3,), (3, 2)], ids=str)
@pytest.mark.parametrize("every_step", [False, True], ids=["last step", "every step"])
@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm", "tokens", "attention"])
def test_float_labels_of_time_first_batches_that_vary_are_a_warning(
    kind, every_step, label_shape, capsys
) -> None:
    train_last_step(LastStep(kind, every_step=every_step), label_shape, accumulate=4)
    told = capsys.readouterr().err
    assert told.count("a batch counts as 7 samples") == 1
    assert "step.call((x, y), samples=3)" in told


def test_the_rows_of_the_output_tell_samples_from_time_steps(capsys) -> None:
    step = train_last_step(LastStep("linear"), (3,))
    assert capsys.readouterr().err == ""
    step.means()
    assert capsys.readouterr().err.count("a batch counts as 7 samples") == 1


def test_labels_that_fit_no_feature_tell_samples_from_time_steps(capsys) -> None:
    train_last_step(LastStep("linear", every_step=True), (3, 2), accumulate=4)
    assert capsys.readouterr().err.count("a batch counts as 7 samples") == 1


def test_a_first_batch_with_as_many_time_steps_as_samples_hides_nothing(capsys) -> None:
    train_last_step(LastStep("lstm"), (3,), steps=(3, 5, 7), accumulate=4)
    assert capsys.readouterr().err.count("a batch counts as 7 samples") == 1


def test_sources_and_targets_with_different_numbers_of_time_steps_are_a_warning(capsys) -> None:
    model = LastStep("tokens")

    def loss_of(model, source, target):
        return (model(source)[0].mean() - target.float().mean()).square()

    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of, accumulate=2)
    for source, target in ((6, 4), (8, 7)):
        step(torch.ones(source, 3).long(), torch.ones(target, 3).long())
    assert capsys.readouterr().err.count("a batch counts as 8 samples") == 1


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 5)], ids=str)
def test_weights_of_channels_in_a_batch_are_not_a_warning(shape, capsys) -> None:
    model = nn.Conv1d(3, 3, 1)

    def loss_of(model, x, weights):
        return (model(x) * weights.reshape(3, -1)).square().mean()

    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of, accumulate=2)
    for rows in (8, 8, 6, 8):
        step(torch.ones(rows, 3, 5), torch.ones(shape))
    step.means()
    assert capsys.readouterr().err == ""


def test_a_support_set_with_the_same_features_is_not_a_warning(capsys) -> None:
    model = nn.Linear(3, 2)

    def loss_of(model, x, support):
        return torch.cdist(model(x), model(support)).mean()

    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of, accumulate=2)
    for rows in (8, 8, 6, 8):
        step(torch.randn(rows, 3), torch.randn(5, 3))
    step.means()
    assert capsys.readouterr().err == ""


class Classifier(nn.Module):
    """Classifies sequences of tokens with a recurrent module or attention."""

    def __init__(self, kind: str, *, batch_first: bool) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)
        self.body: nn.Module = (
            nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.0, batch_first=batch_first)
            if kind == "attention"
            else nn.GRU(4, 4, batch_first=batch_first)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.body(self.embedding(x))
        return self.head((found[0] if isinstance(found, tuple) else found)[:, -1])


SAMPLES_AS_TIME = "it reads samples as time steps of each other"


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", ["gru", "attention"])
def test_samples_that_are_read_as_time_steps_are_a_warning_once(kind, batch_first, capsys) -> None:
    model = Classifier(kind, batch_first=batch_first)

    def loss_of(model, x, y):
        return nn.functional.cross_entropy(model(x), y)

    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of, tier="eager")
    for _ in range(3):
        step(torch.ones(6, 5, dtype=torch.int64), torch.zeros(6, dtype=torch.int64))
    assert capsys.readouterr().err.count(SAMPLES_AS_TIME) == (not batch_first)


@pytest.mark.parametrize(
    "batch",
    [
        (torch.ones(7, 4, 3), torch.zeros(7, 4, 1)),  # [time, batch, …]
        (torch.ones(7, 4, 3), torch.zeros(7, 4, 1), torch.arange(7.0)),
        (torch.ones(7, 1, 3), torch.zeros(7)),
    ],
)
def test_batches_with_time_first_are_not_called_samples(batch, capsys) -> None:
    model = Recurrent()

    def loss_of(model, x, y, *_):
        return (model(x).flatten(1).sum(1) - y.reshape(len(y), -1).sum(1)).square().mean()

    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of, tier="eager")
    step(*batch)
    assert SAMPLES_AS_TIME not in capsys.readouterr().err

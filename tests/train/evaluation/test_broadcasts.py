"""Metrics that would compare each prediction with all targets."""

import pytest
import torch

from flodl import Loader
from flodl.train.evaluation.broadcasts import broadcast_metrics

PREDICTIONS, TARGETS = torch.arange(6.0), torch.arange(6.0) + 0.5
# As many rows of pixels as samples.
MASKS = torch.rand(6, 6, 5, generator=torch.Generator().manual_seed(0))


class SquaredError:
    def reset(self):
        self.total = 0.0

    def update(self, predictions, targets):
        self.total += (predictions - targets).square().mean()

    def compute(self):
        return self.total


class Agreement(SquaredError):
    """Of numbers of any dtype."""

    def update(self, predictions, targets):
        self.total += (predictions == targets).float().mean() + (predictions * targets).float().mean()


class OfOneColumn(SquaredError):
    def update(self, predictions, targets):
        super().update(predictions[:, 0], targets)


class Flat(SquaredError):
    def update(self, predictions, targets):
        super().update(predictions.flatten(), targets.flatten())


def warnings_of(metric, predictions, targets):
    return [*broadcast_metrics({"mse": metric}, predictions, targets)]


@pytest.mark.parametrize(
    ("predictions", "targets", "told"),
    [
        (PREDICTIONS[:, None], TARGETS, "predictions [6, 1] and targets [6], "),
        (PREDICTIONS, TARGETS[:, None], "predictions [6] and targets [6, 1], "),
        (PREDICTIONS[:, None], TARGETS.long(), "predictions [6, 1] and targets [6], "),
        (PREDICTIONS, TARGETS[:, None].long(), "predictions [6] and targets [6, 1], "),
        (PREDICTIONS[:, None].long(), TARGETS.long(), "predictions [6, 1] and targets [6], "),
        (PREDICTIONS[:, None], TARGETS > 3, "predictions [6, 1] and targets [6], "),
        (MASKS[:, None], MASKS.round(), "predictions [6, 1, 6, 5] and targets [6, 6, 5], "),
        (MASKS[:, 0, :1], MASKS[:, 0, 0], "predictions [6, 1] and targets [6], "),
    ],
)
def test_a_metric_that_broadcasts_is_reported_with_the_shapes(predictions, targets, told):
    (warning,) = warnings_of(Agreement(), predictions, targets)
    assert told in warning
    assert "outputs=lambda model, x, y: (" in warning
    assert ".squeeze(1)" in warning


@pytest.mark.parametrize("metric", [OfOneColumn(), Flat()])
def test_a_metric_that_handles_the_dimension_is_not_reported(metric):
    assert not warnings_of(metric, PREDICTIONS[:, None], TARGETS)
    assert not warnings_of(metric, MASKS[:, None], MASKS.round())


@pytest.mark.parametrize(
    ("predictions", "targets"),
    [
        (PREDICTIONS, TARGETS),
        (PREDICTIONS[:, None], TARGETS[:, None]),
        (PREDICTIONS[:, None, None], TARGETS),
        (torch.zeros(6, 3), TARGETS[:3]),
    ],
)
def test_other_shapes_are_not_reported(predictions, targets):
    assert not warnings_of(SquaredError(), predictions, targets)


def test_fit_warns_before_training_and_not_with_fitting_outputs(make, data, capsys):
    x, y = data[0], data[1][:, 0]

    def step(model, x, y):
        return (model(x)[:, 0] - y).square().mean()

    settings = {"step_fn": step, "metrics": {"mse": SquaredError()}, "monitor": None}
    make(**settings).fit((x, y), epochs=1, batch_size=10, eval_data=(x, y))
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("the metric 'mse' (SquaredError) gets predictions [10, 1]") == 1
    trainer = make(**settings, outputs=lambda model, x, y: (model(x).squeeze(1), y))
    trainer.fit((x, y), epochs=1, batch_size=10, eval_data=(x, y))
    printed = capsys.readouterr()
    assert "gets predictions" not in printed.out + printed.err


def with_accuracy_in_evaluation(model, x, y):
    """Return a correct loss, and in evaluation a mean over all pairs of predictions and targets."""
    predictions = model(x)
    loss = torch.nn.functional.mse_loss(predictions.squeeze(1), y)
    return loss, {} if model.training else {"close": ((predictions - y).abs() < 1).float().mean()}


def test_a_run_warns_before_training_with_the_line_of_the_step_function(make, data, capsys, monkeypatch):
    import torch._dynamo.eval_frame

    monkeypatch.setattr(torch._dynamo.eval_frame, "cached_backends", {})  # of other tests
    flat = data[0], data[1].squeeze(1)

    def loss_of(model, x, y):
        return ((model(x) - y) ** 2).mean()

    for step_fn in (loss_of, with_accuracy_in_evaluation):
        make(step_fn=step_fn).fit(flat, epochs=1, batch_size=8, eval_data=Loader(flat, 5))
        err = capsys.readouterr().err
        first = step_fn.__code__.co_firstlineno
        named = [f"at test_broadcasts.py:{first + line}, tensors of shape" in err for line in range(6)]
        assert named.count(True) == err.count("tensors of shape") == 1
    make(step_fn=loss_of).fit(data, epochs=1, batch_size=8, eval_data=data)
    assert capsys.readouterr().err == ""

"""What a trainer says about `outputs=` fits the batches."""

import pytest
import torch
from torch import nn

from flodl.core import TrainError
from flodl.engine.errors import StepFunctionError
from flodl.train import ClassF1
from flodl.train.evaluation.outputs import fitting_outputs

WEIGHTED = torch.randn(8, 3), torch.ones(8), torch.zeros(8, dtype=torch.int64)


def weighted_loss(model, x, weight, y):
    return (nn.functional.cross_entropy(model(x), y, reduction="none") * weight).mean()


def evaluate(make, **settings):
    trainer = make(nn.Linear(3, 2), weighted_loss, metrics={"f1": ClassF1(2)}, **settings)
    return trainer.evaluate(WEIGHTED, batch_size=4)


def test_the_advice_for_a_batch_of_three_parts_has_their_names(make):
    advice = r"has 3 parts, not two\. Define them: outputs=lambda model, x, weight, y: \(model\(x\), y\)\."
    with pytest.raises(TrainError, match=advice):
        evaluate(make)
    assert "f1" in evaluate(make, outputs=lambda model, x, weight, y: (model(x), y))


def test_outputs_with_other_arguments_than_the_batch_has_are_an_error_with_advice(make):
    with pytest.raises(
        TrainError, match=r"outputs is called like the step function.*the 3 parts.*lambda model, x, weight, y"
    ):
        evaluate(make, outputs=lambda model, batch: (model(batch[0]), batch[2]))


def test_a_type_error_inside_outputs_is_raised_with_a_note_that_names_outputs(make):
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        evaluate(make, outputs=lambda model, x, weight, y: (model(x) + "a", y))
    assert caught.value.__notes__ == [
        "This error is from outputs=, which returns predictions and targets for metrics=."
    ]


class WithLengths(nn.Module):
    """A model that needs two parts of the batch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x, n):
        return self.linear(x) / n[:, None]


def loss_with_lengths(model, x, n, y):
    return nn.functional.cross_entropy(model(x, n), y)


def evaluate_with_lengths(make, **settings):
    trainer = make(WithLengths(), loss_with_lengths, metrics={"f1": ClassF1(2)}, **settings)
    return trainer.evaluate(WEIGHTED, batch_size=4)


def test_the_advice_for_a_model_that_takes_lengths_passes_them(make):
    advice = r"Define them: outputs=lambda model, x, n, y: \(model\(x, n\), y\)\."
    with pytest.raises(TrainError, match=advice):
        evaluate_with_lengths(make)
    assert "f1" in evaluate_with_lengths(make, outputs=lambda model, x, n, y: (model(x, n), y))


def test_a_wrong_call_of_the_model_inside_outputs_is_explained(make):
    with pytest.raises(StepFunctionError) as caught:
        evaluate_with_lengths(make, outputs=lambda model, x, n, y: (model(x), y))
    told = str(caught.value)
    assert "missing 1 required positional argument: 'n', in outputs=<lambda>(model, x, n, y) at test" in told
    assert "the batch of the evaluation data is (float32 [4, 3], float32 [4], int64 [4])" in told
    assert told.endswith("The model takes (x, n): call it as model(x, n).")


def test_a_torch_error_inside_outputs_is_explained(make):
    with pytest.raises(StepFunctionError, match=r"cannot be multiplied.*, in outputs=<lambda>\(model, x, n"):
        evaluate_with_lengths(make, outputs=lambda model, x, n, y: (model(x[:, :2], n), y))


def test_a_model_that_needs_both_parts_of_a_pair_needs_outputs(make):
    class Decoder(nn.Embedding):
        def forward(self, source, target):
            return super().forward(source + target)

    def loss_of(model, source, target):
        return nn.functional.cross_entropy(model(source, target), target)

    trainer = make(Decoder(8, 2), loss_of, metrics={"f1": ClassF1(2)})
    data = torch.arange(4), torch.arange(4) % 2
    advice = r"missing a required argument: 'target'\. Define them: outputs=lambda model, source, target: "
    with pytest.raises(TrainError, match=advice + r"\(model\(source, target\), target\)"):
        trainer.evaluate(data, batch_size=4)


class Named(nn.Module):
    """A model with an optional parameter and one that is passed by name."""

    def forward(self, text, mask=None, *, kind):
        return text


@pytest.mark.parametrize(
    ("model", "step_fn", "batch", "expected"),
    [
        (
            Named(),
            lambda model, text, mask, y: text,
            (1, 2, 3),
            "model, text, mask, y: (model(text, mask), y)",
        ),
        (Named(), lambda model, text, kind, y: text, (1, 2, 3), "(model(text, kind=kind), y)"),
        (Named(), lambda m, b: b, ({"mask": 1, "text": 2, "y": 3},), "(model(batch['text']), batch['y'])"),
        (WithLengths(), lambda m, b: b, ({"x": 1, "n": 2, "y": 3},), "(model(batch['x'], batch['n']), batch"),
        (nn.Sequential(), lambda *parts: parts, (1, 2, 3), "model, x, part_2, y: (model(x), y)"),
    ],
)
def test_the_advice_follows_the_signature_of_the_model(model, step_fn, batch, expected):
    assert expected in fitting_outputs(model, step_fn, batch)


def test_outputs_without_metrics_cause_a_warning(make, capsys):
    make(outputs=lambda model, x, y: (model(x), y))
    make(outputs=lambda model, x, y: (model(x), y), metrics={"f1": ClassF1(2)})
    make(outputs=lambda model, x, y: (model(x), y), metrics={})  # a model may have none
    told = capsys.readouterr()
    assert (told.out + told.err).count("outputs= has no effect without metrics=") == 1


class Failing:
    def reset(self):
        pass

    def update(self, predictions, targets):
        pass

    def compute(self):
        raise ZeroDivisionError("no positives")


def test_an_error_in_compute_names_the_metric(make, data):
    trainer = make(metrics={"auc": Failing()})
    with pytest.raises(ZeroDivisionError, match="no positives") as caught:
        trainer.evaluate(data, 10)
    assert caught.value.__notes__ == ["This error is from compute() of the metric 'auc' (Failing)."]

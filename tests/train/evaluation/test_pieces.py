"""A batch is compared with its pieces, to find counts, and losses that are not means over samples."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flodl import Trainer, TrainStep
from flodl.monitor import Monitor, read
from flodl.train.evaluation.evaluator import Evaluator
from flodl.train.evaluation.pieces import compare_pieces


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.Linear(16, 4))


def make_data(count=40):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 8, generator=generator), torch.randint(4, (count,), generator=generator)


def compared(step_fn, data, names=("loss",)):
    model = make_model()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager")
    evaluator = Evaluator(model, step_fn, torch.device("cpu"), "fp32")
    return compare_pieces(step, evaluator, data, names)


def warnings_of(tmp_path, values):
    def step_fn(model, x, y):
        scores = model(x)
        return cross_entropy(scores, y), values(scores, x, y)

    monitor = Monitor(1, tmp_path / "run", console=False, resources=False)
    trainer = Trainer(
        make_model(),
        step_fn,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
        device="cpu",
        tier="eager",
        monitor=monitor,
    )
    trainer.fit(make_data(), epochs=1, batch_size=20)
    monitor.close()
    return [entry.event.data["message"] for entry in read(tmp_path / "run") if entry.event.kind == "alert"]


@pytest.mark.parametrize("as_int", [False, True])
def test_a_count_among_the_named_values_is_warned_about_once(tmp_path, as_int):
    def count(scores, x, y):
        correct = (scores.argmax(1) == y).sum()
        return {"correct": correct.item() if as_int else correct}

    (warning,) = warnings_of(tmp_path, count)
    assert "'correct', a count over the batch" in warning
    assert ".float().mean()" in warning


@pytest.mark.parametrize(
    "values",
    [
        lambda scores, x, y: {"accuracy": (scores.argmax(1) == y).float().mean()},
        lambda scores, x, y: {"length": x.shape[1], "highest": y.max(), "stage": 0, "is_late": False},
        lambda scores, x, y: {"noise": torch.randint(100, (len(x),)).sum()},
    ],
    ids=["a rate", "integers that are no counts", "random numbers"],
)
def test_other_named_values_have_no_warning(tmp_path, values):
    assert warnings_of(tmp_path, values) == []


def test_a_count_as_a_float_is_noted(tmp_path):
    (note,) = warnings_of(tmp_path, lambda scores, x, y: {"correct": (scores.argmax(1) == y).sum().float()})
    assert note.startswith("'correct' of the step function is a count over the batch")


def test_means_sums_and_weighted_means_of_losses_are_distinguished():
    def mean(model, x, y):
        return cross_entropy(model(x), y)

    def total(model, x, y):
        return cross_entropy(model(x), y, reduction="sum")

    def weighted(model, x, y):
        return cross_entropy(model(x), y, weight=torch.tensor([1.0, 1.0, 1.0, 20.0]))

    data = make_data(41)
    found = [compared(step_fn, data) for step_fn in (mean, total, weighted)]
    assert [one.is_mean("loss") for one in found] == [True, False, False]
    assert [one.is_sum("loss") for one in found] == [False, True, False]


def test_random_losses_batches_that_cannot_be_split_and_errors_are_not_compared():
    def noisy(model, x, y):
        return cross_entropy(model(x + torch.randn_like(x)), y)

    def mean(model, x, y, *rest):
        return cross_entropy(model(x), y)

    def fails(model, x, y):
        raise ValueError("bad label")

    x, y = make_data()
    assert compared(noisy, (x, y)) is None
    assert compared(mean, (x, y, ["a"] * 40)) is None
    assert compared(mean, (x[:1], y[:1])) is None
    assert compared(fails, (x, y)) is None


def test_the_comparison_changes_nothing():
    model, (x, y) = make_model(), make_data()

    def step_fn(model, x, y):
        return cross_entropy(model(x), y)

    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    compare_pieces(step, Evaluator(model, step_fn, torch.device("cpu"), "fp32"), (x, y), ["loss"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(module.training for module in model.modules())

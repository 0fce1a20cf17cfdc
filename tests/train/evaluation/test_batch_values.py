"""Named values whose mean over batches depends on the batch size are reported."""

import pytest
import torch
from torch import nn

from flodl import Loader
from flodl.core.pooled_metrics import Pooling, pooling_of


def values_of(names):
    """Return a step function with these values of its errors, each computed over the batch."""

    def step_fn(model, x, y):
        error = model(x) - y
        each = error.square().mean(1)
        known = {
            "rmse": each.mean().sqrt(),
            "r2": 1 - each.sum() / (y - y.mean()).square().sum(),
            "iou": error.square().sum() / error.abs().sum(),
            "iou_per_sample": each.mean(),
            "f1": each.mean(),
            "accuracy": each.mean().sqrt(),
            "correct": (error.abs() < 100).sum(),
            "rmse_of_no_numbers": torch.tensor(float("nan")),
        }
        return each.mean(), {name: known[name] for name in names}

    return step_fn


NOTE = "reported as the mean over batches, which depends on the batch size"


@pytest.fixture
def told(make, data, capfd):
    """Return a function that trains, or only evaluates, and returns what was printed."""

    def run(step_fn, *, evaluates_only=False, times=1, **settings):
        trainer = make(step_fn=step_fn, **{"monitor": None, **settings})
        for number in range(times):
            if evaluates_only:
                trainer.evaluate(data, batch_size=5)
            else:
                trainer.fit(data, epochs=number + 1, batch_size=5, eval_data=data)
        printed = capfd.readouterr()
        return printed.out + printed.err

    return run


@pytest.mark.parametrize("evaluates_only", [False, True])
def test_metrics_that_pool_samples_are_noted_once(told, evaluates_only):
    text = told(values_of(["rmse", "r2", "iou"]), evaluates_only=evaluates_only, times=2)
    assert text.count(NOTE) == 1
    assert "'rmse' and 'r2' and 'iou' of the step function are" in text
    assert "metrics={'rmse': …}" in text
    assert "warning" not in text


def test_a_metric_that_cannot_be_compared_is_noted_if_its_name_is_clear(told):
    assert f"'rmse_of_no_numbers' of the step function is {NOTE}" in told(values_of(["rmse_of_no_numbers"]))


@pytest.mark.parametrize("name", ["iou_per_sample", "f1", "accuracy"])
def test_means_over_samples_and_other_names_are_not_noted(told, name):
    assert NOTE not in told(values_of([name]))


def test_a_run_without_output_has_the_note_in_the_log(told):
    assert told(values_of(["rmse"]), monitor=False).count(NOTE) == 1


@pytest.mark.parametrize("dry_pass", [True, False])
def test_an_evaluation_without_a_training_reports_counts_once(told, dry_pass):
    text = told(values_of(["correct"]), evaluates_only=True, times=2, dry_pass=dry_pass)
    assert text.count("'correct', a count over the batch") == dry_pass


def test_an_evaluation_after_a_training_reports_nothing_again(make, data, capfd):
    trainer = make(step_fn=values_of(["correct", "rmse"]), monitor=None)
    trainer.fit(data, epochs=1, batch_size=5)
    capfd.readouterr()
    trainer.evaluate(data, batch_size=5)
    assert capfd.readouterr().err == ""


def test_looking_at_the_values_does_not_change_an_evaluation(make, data):
    calls = []

    def step_fn(model, x, y):
        calls.append(len(x))
        return values_of(["correct", "rmse"])(model, x, y)

    model = nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1))
    state = torch.random.get_rng_state()
    trainer = make(model, step_fn)
    first, second = (trainer.evaluate(data, batch_size=5) for _ in range(2))
    assert first == second
    assert calls == [5] * 8
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model[1].num_batches_tracked == 0


@pytest.mark.parametrize(
    ("name", "compute", "is_reported"),
    [
        ("accuracy", lambda right: right.float().sum(), True),
        ("top1_acc", lambda right: right.double().sum(), True),
        ("accuracy", lambda right: 100 * right.float().mean(), False),  # in percent
        ("accuracy", lambda right: right.float().mean(), False),
        ("correct", lambda right: right.float().sum(), False),  # the mean of a count may be meant
    ],
)
def test_a_count_that_is_named_like_an_accuracy_is_reported_once(told, name, compute, is_reported):
    def step_fn(model, x, y):
        error = model(x) - y
        return error.square().mean(), {name: compute(error.flatten().abs() < 100)}

    text = told(step_fn, times=2)
    assert text.count(f"the step function returns {name!r}, a count over the batch") == is_reported
    assert "convert it" not in text


@pytest.mark.parametrize(("name", "is_reported"), [("correct", True), ("length", False)])
def test_a_count_of_zero_in_the_first_batch_is_reported_after_the_first_epoch(
    make, data, capsys, name, is_reported
):
    def step_fn(model, x, y):
        error = model(x) - y
        is_first = torch.equal(x, data[0][:5]) or len(x) < 5
        return error.square().mean(), {name: torch.tensor(0 if is_first else len(x))}

    batches = [(data[0][start : start + 5], data[1][start : start + 5]) for start in range(0, 20, 5)]
    make(step_fn=step_fn).fit(batches, epochs=3)
    assert capsys.readouterr().err.count(f"'{name}', a count over the batch") == is_reported


@pytest.mark.parametrize(
    ("name", "pooling"),
    [
        ("RMSE", Pooling.ALWAYS),
        ("macro_f1", Pooling.ALWAYS),
        ("BinaryAUROC", Pooling.ALWAYS),
        ("ppl", Pooling.ALWAYS),
        ("precision", Pooling.OFTEN),
        ("mIoU", Pooling.OFTEN),
        ("mse", Pooling.NEVER),
        ("top5", Pooling.NEVER),
        ("f1_loss", Pooling.NEVER),
    ],
)
def test_names_say_whether_a_metric_pools_samples(name, pooling):
    assert pooling_of(name) is pooling


@pytest.mark.parametrize(
    ("name", "reduce", "is_reported"),
    [
        ("correct", torch.sum, True),
        ("num_hits", torch.sum, True),
        ("correct", torch.mean, False),
        ("length", torch.sum, False),
    ],
)
def test_a_float_that_is_a_count_by_its_name_and_its_sum_causes_a_note(
    make, data, capsys, name, reduce, is_reported
):
    def step_fn(model, x, y):
        found = model(x)
        return (found - y).square().mean(), {name: reduce((found < 1e9).float())}

    make(step_fn=step_fn).fit(data, epochs=2, batch_size=5)
    out, err = capsys.readouterr()
    assert out.count(f"'{name}' of the step function is a count over the batch") == is_reported
    assert err == ""


@pytest.mark.parametrize(("name", "is_reported"), [("acc", True), ("correct", True), ("length", False)])
def test_a_count_in_a_batch_that_cannot_be_split_is_reported_by_its_name(make, capfd, name, is_reported):
    items = [(torch.randn(3), torch.randn(2)) for _ in range(20)]

    def collate(rows):
        flat = torch.arange(2 * len(rows) + 1)  # like the indices of an embedding bag
        return flat, torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])

    def step_fn(model, flat, x, y):
        error = model(x) - y
        return error.square().mean(), {name: (error.abs() < 100).sum()}

    make(step_fn=step_fn, monitor=None).fit(Loader(items, 5, collate=collate), epochs=1)
    printed = capfd.readouterr()
    assert (f"'{name}', a count over the batch" in printed.out + printed.err) == is_reported


@pytest.mark.parametrize(
    ("name", "compute", "is_noted"),
    [
        ("perplexity", lambda each: each.mean().exp(), True),
        ("val_ppl", lambda each: each.mean().exp(), True),
        ("ppl", lambda each: each.exp().mean(), False),  # one for each sample
        ("f1", lambda each: 0 * each.mean(), True),
        ("iou", lambda each: 0 * each.mean() + 1, False),
    ],
)
def test_values_that_are_alike_in_all_batches_before_training_are_judged_by_their_names(
    told, data, name, compute, is_noted
):
    def step_fn(model, x, y):
        # Like the loss of a language model at first: nearly the same for each sample.
        each = 4 + 0.01 * (model(x) - y).square().mean(1)
        return each.mean(), {name: compute(each)}

    assert (NOTE in told(step_fn)) == is_noted


def summed(model, x, y):
    return (model(x) - y).square().sum()


def summed_by_a_module(model, x, y):
    return SUM(model(x), y)


def summed_over_columns(model, x, y):
    return (model(x) - y).square().sum(1).mean()


def divided(model, x, y):
    return (model(x) - y).square().sum() / len(x)


SUM = nn.MSELoss(reduction="sum")


@pytest.mark.parametrize("evaluates_only", [False, True])
@pytest.mark.parametrize("step_fn", [summed, summed_by_a_module])
def test_a_loss_that_is_a_sum_over_samples_is_noted_once(told, step_fn, evaluates_only):
    text = told(step_fn, evaluates_only=evaluates_only, times=2)
    assert text.count("the loss is a sum over the samples of a batch") == 1


@pytest.mark.parametrize("step_fn", [summed_over_columns, divided])
def test_a_loss_that_is_a_mean_of_sums_is_not_noted(told, step_fn):
    assert "the loss is a sum" not in told(step_fn)

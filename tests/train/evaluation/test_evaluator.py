"""Evaluation is exact for any batches, and does not affect training."""

import contextlib

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, Loader
from flodl.core import DataError, TrainError


def named_loss(model, x, y):
    out = model(x)
    return nn.functional.mse_loss(out, y), {"mean": out.mean(), "big": (y > 0).float().mean()}


class NoisyModel(nn.Module):
    """Dropout and batch norm, with some parts in a different mode."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.still = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.head = nn.Linear(8, 1)
        self.still.eval()

    def forward(self, x):
        return self.head(self.still(self.body(x)))


def noisy_model():
    torch.manual_seed(0)
    return NoisyModel()


@pytest.mark.parametrize("batch_size", [1, 3, 7, 19])
def test_ragged_batches_give_the_same_result_as_one_batch(make, data, batch_size):
    trainer = make(step_fn=named_loss)
    whole = trainer.evaluate(data, batch_size=20)
    parts = trainer.evaluate(data, batch_size=batch_size)
    assert list(parts) == ["loss", "mean", "big"]
    assert parts == pytest.approx(whole, rel=1e-6)
    assert parts["big"] == pytest.approx((data[1] > 0).float().mean().item(), rel=1e-6)


@pytest.mark.parametrize("own_loader", [False, True])
def test_an_evaluation_does_not_affect_training(make, data, own_loader):
    def history_of(eval_data):
        trainer = make(noisy_model(), named_loss, seed=0)
        torch.manual_seed(7)
        rows = trainer.fit(data, epochs=3, batch_size=6, eval_data=eval_data).history
        return [{name: value for name, value in row.items() if "eval" not in name} for row in rows]

    assert history_of(None) == history_of(Loader(data, 3, seed=9) if own_loader else data)


def test_the_mode_of_each_module_is_restored(make, data):
    trainer = make(noisy_model(), named_loss)
    before = [module.training for module in trainer.model.modules()]
    statistics = trainer.model.body[1].running_mean.clone()
    trainer.evaluate(data, batch_size=4)
    assert [module.training for module in trainer.model.modules()] == before
    assert False in before
    assert True in before
    assert torch.equal(trainer.model.body[1].running_mean, statistics)


def test_modes_are_restored_after_an_error(make, data):
    def broken(model, x, y):
        raise ValueError("mine")

    trainer = make(step_fn=broken, ema=0.9)
    weights = trainer.model[0].weight.clone()
    trainer.average._average[0].zero_()
    with pytest.raises(ValueError, match="mine"):
        trainer.evaluate(data, batch_size=4)
    assert trainer.model.training
    assert torch.equal(trainer.model[0].weight, weights)


def test_modes_are_restored_if_the_switch_itself_is_interrupted(make, data):
    class Slow(nn.Tanh):
        def train(self, mode=True):
            if not mode:
                raise KeyboardInterrupt
            return super().train(mode)

    trainer = make(nn.Sequential(nn.Linear(3, 1), Slow()))
    with pytest.raises(KeyboardInterrupt):
        trainer.evaluate(data)
    assert all(module.training for module in trainer.model.modules())


def test_an_evaluation_in_a_hook_does_not_disturb_the_epoch(make, data):
    found = []

    def on_step_end(trainer, step):
        if step == 2:
            found.append(trainer.evaluate(data, batch_size=4)["loss"])

    asked, plain = make(hooks=[on_step_end]), make()
    assert asked.fit(data, epochs=2, batch_size=8).history == plain.fit(data, epochs=2, batch_size=8).history
    assert len(found) == 1


def test_the_evaluation_loader_is_created_once(make, data):
    trainer = make()
    trainer.fit(data, epochs=2, batch_size=8, eval_data=data)
    first = trainer._run.loaders._evaluation
    trainer.evaluate((data[0], data[1]))
    assert trainer._run.loaders._evaluation is first
    trainer.evaluate(data, batch_size=3)
    assert trainer._run.loaders._evaluation is not first


def test_the_training_loader_is_rejected(make, data):
    trainer, loader = make(), Loader(data, 4)
    with pytest.raises(TrainError, match="Use a separate loader for evaluation"):
        trainer.fit(loader, epochs=1, eval_data=loader)


def test_a_batch_size_is_not_needed_and_changes_nothing(make, data):
    trainer = make()
    assert trainer.evaluate(data) == pytest.approx(trainer.evaluate(data, batch_size=5))


@pytest.mark.parametrize("batch_size", [0, False, -1])
def test_a_batch_size_below_one_is_rejected(make, data, batch_size):
    with pytest.raises(DataError, match=f"evaluation data cannot be used: batch_size={batch_size}. Pass an"):
        make().evaluate(data, batch_size)


def test_an_evaluation_without_data_raises(make):
    class Nothing(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(DataError, match="yields no batch"):
        make().evaluate(Loader(Nothing(), 4))


def test_a_value_that_is_not_a_single_number_raises(make, data):
    trainer = make(step_fn=lambda model, x, y: (nn.functional.mse_loss(model(x), y), {"rows": x}))
    with pytest.raises(TrainError, match="returns 'rows' with shape"):
        trainer.evaluate(data, batch_size=4)


class Mean:
    """A metric with the interface of many libraries."""

    def reset(self):
        self.total, self.count = 0.0, 0

    def update(self, predictions, targets):
        self.total += float((predictions - targets).abs().sum())
        self.count += len(targets)

    def compute(self):
        return self.total / self.count


def test_metric_objects_see_every_sample_once(make, data):
    trainer = make(metrics={"mae": Mean()})
    assert trainer.evaluate(data, batch_size=7)["mae"] == pytest.approx(
        trainer.evaluate(data, batch_size=20)["mae"], rel=1e-6
    )
    rows = trainer.fit(data, epochs=2, batch_size=8, eval_data=data).history
    assert all("eval_mae" in row for row in rows)


def test_metrics_of_other_batch_structures_raise_with_advice(make, data):
    table = {"x": data[0], "y": data[1]}

    def step_fn(model, batch):
        return nn.functional.mse_loss(model(batch["x"]), batch["y"])

    with pytest.raises(TrainError, match="outputs=lambda model, batch"):
        make(step_fn=step_fn, metrics={"mae": Mean()}).evaluate(table, batch_size=4)
    trainer = make(
        step_fn=step_fn,
        metrics={"mae": Mean()},
        outputs=lambda model, batch: (model(batch["x"]), batch["y"]),
    )
    assert "mae" in trainer.evaluate(table, batch_size=4)


def test_torchmetrics_work(make, data):
    torchmetrics = pytest.importorskip("torchmetrics")
    trainer = make(
        metrics={
            "mae": torchmetrics.MeanAbsoluteError(),
            "both": torchmetrics.MetricCollection(
                {"r2": torchmetrics.R2Score(), "mse": torchmetrics.MeanSquaredError()}
            ),
        }
    )
    found = trainer.evaluate(data, batch_size=7)
    with torch.no_grad():
        out = trainer.model(data[0])
    assert found["mae"] == pytest.approx((out - data[1]).abs().mean().item(), rel=1e-5)
    assert found["both_mse"] == pytest.approx(found["loss"], rel=1e-5)
    assert set(found) == {"loss", "mae", "both_r2", "both_mse"}


def test_a_torchmetrics_collection_keeps_its_own_names(make, data):
    torchmetrics = pytest.importorskip("torchmetrics")
    both = torchmetrics.MetricCollection([torchmetrics.MeanAbsoluteError(), torchmetrics.MeanSquaredError()])
    found = make(metrics=both).evaluate(data, batch_size=7)
    assert set(found) == {"loss", "MeanAbsoluteError", "MeanSquaredError"}


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ([Mean()], r"metrics is a list. Name each metric: metrics=\{'f1': …\}"),
        ({"mae": lambda predictions, targets: 0.0}, "the metric 'mae' has no method 'reset'"),
        ({"mae": Mean}, "the metric 'mae' is the class Mean. Create one"),
        ({"loss": Mean()}, "a metric is named 'loss', which is reserved"),
        ({3: Mean()}, "metrics= has a Mean under the name 3, which is an int. Use a string"),
        (dict.fromkeys(["mae", "error"], Mean()), "has the same Mean under the names 'mae' and 'error'"),
    ],
)
def test_an_invalid_metric_is_rejected_before_training(make, metrics, words):
    with pytest.raises(TrainError, match=words):
        make(metrics=metrics)


def test_a_metric_and_a_value_of_the_step_function_with_one_name_are_refused_with_both_origins(make, data):
    def step_fn(model, x, y):
        loss = nn.functional.mse_loss(model(x), y)
        return loss, {"mae": loss}

    trainer = make(step_fn=step_fn, metrics={"mae": Mean()})
    with pytest.raises(
        TrainError,
        match=r"the step function returns a value named 'mae', and metrics= has a Mean of that name. Both "
        r"would be reported as 'eval_mae'\. Rename one of them\.",
    ):
        trainer.evaluate(data, batch_size=4)


def test_a_metric_with_several_values_does_not_replace_one_of_another_origin(make, data):
    class Several(Mean):
        def compute(self):
            return {"b": 1.0, "c": 2.0}

    def step_fn(model, x, y):
        loss = nn.functional.mse_loss(model(x), y)
        return loss, {"a_c": loss}

    with pytest.raises(
        TrainError, match="a value of the metric 'a' and a value of the metric 'a_b' are both"
    ):
        make(metrics={"a": Several(), "a_b": Mean()}).evaluate(data, batch_size=4)
    with pytest.raises(
        TrainError, match="a value of the step function and a metric of metrics= are both nam"
    ):
        make(step_fn=step_fn, metrics={"a": Several()}).evaluate(data, batch_size=4)


def test_the_values_of_a_metric_may_be_numbered(make, data):
    class Numbered(Mean):
        def compute(self):
            return {0: 1.0, 1: 2.0}

    values = make(metrics={"a": Numbered()}).evaluate(data, batch_size=4)
    assert {name: values[name] for name in values if name != "loss"} == {"a_0": 1.0, "a_1": 2.0}


@pytest.mark.parametrize("shape", [(2, 3), (2, 2, 2), (0,)])
def test_a_metric_that_returns_neither_numbers_of_classes_nor_a_matrix_raises(make, data, shape):
    class Rows(Mean):
        def compute(self):
            return torch.ones(shape)

    with pytest.raises(TrainError, match="the metric 'rows' returns a tensor of shape"):
        make(metrics={"rows": Rows()}).evaluate(data, batch_size=4)


@pytest.mark.parametrize("value", [None, "0.5", [1.0]])
def test_a_metric_that_does_not_return_a_number_is_named(make, data, value):
    class Odd(Mean):
        def compute(self):
            return value

    with pytest.raises(TrainError, match=r"the metric 'odd' returns .* Its compute must return a number"):
        make(metrics={"odd": Odd()}).evaluate(data, batch_size=4)


def test_outputs_that_are_not_a_function_are_rejected_before_training(make):
    with pytest.raises(TrainError, match=r"outputs=3\. Use a function of the model"):
        make(outputs=3)


def test_an_evaluation_does_not_change_carried_values(make, data):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(3, 3)

        def forward(self, x, before=None):
            return self.line(x) + (0 if before is None else 0.1 * before)

    def model():
        torch.manual_seed(0)
        return FlowBuilder(Counter()).using("before").tag("before").through(nn.Linear(3, 1)).build()

    assert model().has_state
    with_evaluation, without = make(model()), make(model())
    rows = with_evaluation.fit(data, epochs=2, batch_size=10, eval_data=(data[0][:4], data[1][:4]))
    plain = without.fit(data, epochs=2, batch_size=10)
    assert [row["loss"] for row in rows.history] == [row["loss"] for row in plain.history]


def test_bf16_evaluates_in_bf16(make, data):
    seen = []

    def step_fn(model, x, y):
        out = model(x)
        seen.append(out.dtype)
        return nn.functional.mse_loss(out.float(), y)

    make(step_fn=step_fn, precision="bf16").fit(data, epochs=1, batch_size=20, eval_data=data)
    assert seen == [torch.bfloat16, torch.bfloat16]


@pytest.mark.parametrize("as_loader", [False, True])
def test_an_iterator_for_several_evaluations_is_rejected_at_the_start(make, data, as_loader):
    def once():
        rows = iter(list(zip(*data)))
        return Loader(rows, 8) if as_loader else rows

    trainer = make()
    words = "exhausted after one epoch. Pass something that can be iterated again, such as a list"
    with pytest.raises(TrainError, match=words):
        trainer.fit(data, epochs=2, batch_size=8, eval_data=once())
    assert trainer.updates == 0
    given = once()
    assert "eval_loss" in trainer.fit(data, epochs=1, batch_size=8, eval_data=given).metrics
    with pytest.raises(TrainError, match=words):
        trainer.fit(data, epochs=2, batch_size=8, eval_data=given)


def test_a_step_function_with_a_mask_is_evaluated_with_every_row(make, data):
    def masked(model, x, y, *, mask):
        return ((model(x) - y).square().squeeze(1) * mask).sum() / mask.sum()

    padded, plain = make(step_fn=masked, tail="pad"), make()
    result = padded.fit(data, epochs=1, batch_size=8, eval_data=data)
    expected = plain.fit(data, epochs=1, batch_size=8, eval_data=data)
    assert result.metrics == pytest.approx(expected.metrics)


def test_a_torch_loader_is_evaluated_in_its_own_batches(make, data):
    seen = []

    def step_fn(model, x, y):
        seen.append(tuple(x.shape))
        return nn.functional.mse_loss(model(x), y)

    trainer = make(step_fn=step_fn)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), 6, shuffle=True)
    found = trainer.evaluate(loader)
    assert seen == [(6, 3), (6, 3), (6, 3), (2, 3)]
    assert found["loss"] == pytest.approx(trainer.evaluate(data)["loss"])
    with pytest.raises(TrainError, match="batch_size=5 was given with a DataLoader whose batch_size is 6"):
        trainer.evaluate(loader, batch_size=5)


SEQUENCES = [(torch.full((length, 3), float(length)), float(length)) for length in (2, 9, 4, 5, 3)]


def by_time(samples):
    return nn.utils.rnn.pad_sequence([x for x, _ in samples]), torch.tensor([y for _, y in samples])


def target_mean(model, x, y):
    return y.mean() + 0 * model(x).sum()


@pytest.mark.parametrize("collate", [by_time, lambda samples: tuple(zip(*samples))], ids=["time", "list"])
@pytest.mark.parametrize("of_torch", [False, True])
def test_a_mean_is_over_samples_for_any_batch_layout(make, of_torch, collate):
    def loss(model, x, y):
        return target_mean(model, torch.zeros(1, 3), torch.as_tensor(y))

    if of_torch:
        batches = torch.utils.data.DataLoader(SEQUENCES, batch_size=2, collate_fn=collate)
    else:
        batches = Loader(SEQUENCES, batch_size=2, collate=collate, shuffle=False)
    assert make(step_fn=loss).evaluate(batches) == {"loss": pytest.approx(23 / 5)}


def test_batches_whose_tensors_differ_in_length_are_reported_once(make, capsys):
    batches = [by_time(SEQUENCES[:2]), by_time(SEQUENCES[2:])]
    trainer = make(step_fn=target_mean)
    for _ in range(2):
        trainer.evaluate(Loader(batches, batch_size=None))
    reported = capsys.readouterr().out
    assert (
        reported.count("the first tensor of a batch has 9 rows and others have 2; it counts as 9 samples")
        == 1
    )
    assert reported.count("rows") == 1


def test_the_samples_of_a_single_batch_are_not_noted(make, capsys):
    trainer = make(step_fn=target_mean)
    trainer.evaluate([by_time(SEQUENCES[:2])], batch_size=None)
    printed = capsys.readouterr()
    assert "rows" not in printed.out + printed.err


@pytest.mark.parametrize("asks", [False, True])
def test_a_step_function_that_needs_gradients_in_an_evaluation_raises_with_advice(make, data, asks):
    def penalized(model, x, y):
        with torch.enable_grad() if asks else contextlib.nullcontext():
            x = x.detach().requires_grad_()
            out = model(x)
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            return nn.functional.mse_loss(out, y) + slope.square().mean()

    trainer = make(step_fn=penalized)
    trainer.fit(data, epochs=1, batch_size=4)
    if asks:
        assert trainer.evaluate(data, batch_size=4)["loss"] > 0
        return
    with pytest.raises(RuntimeError, match="does not require grad") as raised:
        trainer.evaluate(data, batch_size=4)
    assert "with torch.enable_grad()" in raised.value.__notes__[0]


def test_a_step_function_that_switches_to_training_mode_cannot_be_evaluated(make, data):
    def step_fn(model, x, y):
        model.train()
        return nn.functional.mse_loss(model(x), y)

    def net():
        return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

    trainer = make(net(), step_fn)
    words = r"at '1': the step function switches the model to training mode.*Remove model\.train\(\)"
    with pytest.raises(TrainError, match=words):
        trainer.fit(data, epochs=1, batch_size=8, eval_data=data)
    assert trainer.updates == 0
    with pytest.raises(TrainError, match=words):
        trainer.evaluate(data)
    make(net(), step_fn).fit(data, epochs=1, batch_size=8)


def test_training_mode_is_noticed_where_only_the_code_of_a_module_depends_on_it(make, data):
    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x + 0.1 if self.training else x)

    def step_fn(model, x, y):
        model.train()
        return nn.functional.mse_loss(model(x), y)

    with pytest.raises(TrainError, match="would run Noisy as in training"):
        make(Noisy(3, 1), step_fn).evaluate(data)
    assert make(nn.Linear(3, 1), step_fn).evaluate(data)["loss"] > 0


def test_an_evaluation_records_nothing_in_a_graph(make, data, capsys):
    def step_fn(model, x, y):
        model.record("mode", 1.0 if model.training else 100.0)
        predictions = model(x)
        model.collect("output")
        return nn.functional.mse_loss(predictions, y)

    graph = FlowBuilder(nn.Linear(3, 1)).tag("output").build()
    plain = FlowBuilder(nn.Linear(3, 1)).tag("output").build()
    plain.load_state_dict(graph.state_dict())
    trainer = make(graph, step_fn, seed=0)
    trainer.evaluate(data)
    trainer.fit(data, epochs=2, batch_size=8, eval_data=(data[0] * 9, data[1]))
    trainer.evaluate(data)
    make(plain, step_fn, seed=0).fit(data, epochs=2, batch_size=8)
    assert list(graph.trend("mode")) == [1.0, 1.0]
    assert list(graph.trend("output")) == list(plain.trend("output"))
    assert "records" not in capsys.readouterr().err


def test_a_metric_that_is_recorded_in_evaluations_only_is_named_once(make, data, capsys):
    def step_fn(model, x, y):
        loss = nn.functional.mse_loss(model(x), y)
        if not model.training:
            model.record("val", loss)
        return loss

    graph = FlowBuilder(nn.Linear(3, 1)).tag("output").build()
    make(graph, step_fn).fit(data, epochs=3, batch_size=8, eval_data=(data[0] + 1, data[1]))
    assert capsys.readouterr().err.count("records 'val' in an evaluation, where nothing is recorded") == 1

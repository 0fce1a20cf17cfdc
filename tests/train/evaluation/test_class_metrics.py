"""Metrics of each class and confusion matrices: values, names, and where they are shown."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flodl import Trainer
from flodl.checkpoint import best, best_bundle, last
from flodl.core import MonitorError, TrainError
from flodl.monitor import Monitor, read
from flodl.monitor.exports import archive
from flodl.monitor.snapshot import snapshot, summary
from flodl.train import ClassAccuracy, ClassF1, ConfusionMatrix, EarlyStopping
from flodl.train.evaluation.metrics import modes_of

LABELS = ["cat", "dog", "ant"]
TARGETS = torch.tensor([0, 0, 0, 1, 1, 2, -100])
PREDICTIONS = torch.tensor([0, 0, 1, 1, 1, 0, 2])


def compute_loss(model, x, y):
    return cross_entropy(model(x), y)


def make(**settings):
    torch.manual_seed(0)
    metrics = {"f1": ClassF1(LABELS), "confusion": ConfusionMatrix(LABELS)}
    settings = {"monitor": False, "metrics": metrics, **settings}
    return Trainer(
        nn.Linear(4, 3),
        compute_loss,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
        device="cpu",
        **settings,
    )


@pytest.fixture
def data():
    torch.manual_seed(1)
    x = torch.randn(60, 4)
    return x, x[:, :3].argmax(dim=1)


def test_counts_are_rows_of_targets_and_negative_targets_do_not_count():
    confusion = ConfusionMatrix(LABELS)
    assert confusion.compute().tolist() == [[0] * 3] * 3
    for part in (slice(0, 3), slice(3, None)):
        confusion.update(PREDICTIONS[part], TARGETS[part])
    assert confusion.compute().tolist() == [[2, 1, 0], [0, 2, 0], [1, 0, 0]]
    confusion.reset()
    confusion.update(nn.functional.one_hot(PREDICTIONS, 3).float(), TARGETS)
    assert confusion.compute().tolist() == [[2, 1, 0], [0, 2, 0], [1, 0, 0]]


def test_each_class_has_its_accuracy_and_f1():
    accuracy, f1 = ClassAccuracy(LABELS), ClassF1(4)
    for metric in (accuracy, f1):
        metric.update(PREDICTIONS, TARGETS)
    assert accuracy.compute().tolist() == pytest.approx([2 / 3, 1.0, 0.0])
    values = f1.compute().tolist()
    assert values[:3] == pytest.approx([4 / 6, 4 / 5, 0.0])
    assert math.isnan(values[3])


@pytest.mark.parametrize(("shape", "use"), [((4,), "model(x).squeeze(-1)"), ((4, 1), "model(x)")])
def test_one_score_for_two_classes_shows_how_to_return_class_ids(shape, use):
    scores, targets = torch.tensor([[1.0], [-1.0], [2.0], [-2.0]]), torch.tensor([1, 0, 1, 1]).reshape(shape)
    with pytest.raises(TrainError) as caught:
        ClassF1(["no", "yes"]).update(scores, targets)
    assert "a score for each class, or class ids" in str(caught.value)
    assert f"outputs=lambda model, x, y: (({use} > 0).long(), y)." in str(caught.value)
    found = ConfusionMatrix(["no", "yes"])
    found.update((scores.reshape(shape) > 0).long(), targets)
    assert found.compute().tolist() == [[1, 0], [1, 2]]


@pytest.mark.parametrize(
    "labels", [1, -3, 3.0, True, None, "cats", ["cat", "cat"], {"cat", "dog"}, torch.tensor(2.0), object()]
)
def test_wrong_labels_are_rejected(labels):
    with pytest.raises(TrainError, match=r"ClassF1\(.*\)\. Pass the number of classes, at least 2"):
        ClassF1(labels)


def test_the_number_of_classes_may_be_that_of_an_array():
    assert ConfusionMatrix(torch.tensor([0, 2, 1]).max() + 1).labels == ["0", "1", "2"]


@pytest.mark.parametrize("dim", ["1", 1.0, True])
def test_a_dim_that_is_not_an_integer_is_rejected(dim):
    with pytest.raises(TrainError, match=rf"ConfusionMatrix\(…, dim={dim!r}\)\. Pass the dimension"):
        ConfusionMatrix(3, dim=dim)


def test_predictions_of_other_classes_are_rejected():
    with pytest.raises(TrainError, match=r"there are 3 classes, and the predictions have the shape \(7, 5\)"):
        ConfusionMatrix(3).update(torch.zeros(7, 5), TARGETS)
    with pytest.raises(TrainError, match="there are 2 classes: 0 to 1"):
        ConfusionMatrix(2).update(PREDICTIONS, TARGETS)


def test_an_evaluation_has_a_number_for_each_class_and_their_mean(data):
    found = make().evaluate(data)
    assert list(found) == ["loss", "f1", "f1_cat", "f1_dog", "f1_ant"]
    assert found["f1"] == pytest.approx(sum(found[f"f1_{label}"] for label in LABELS) / 3)


def test_vectors_of_other_metric_objects_are_named_by_index(data):
    class Shares:
        def reset(self):
            self.total = torch.zeros(3)

        def update(self, predictions, targets):
            self.total += torch.bincount(predictions.argmax(1), minlength=3)

        def compute(self):
            return self.total / self.total.sum()

    trainer = make(metrics={"share": Shares()})
    assert list(trainer.evaluate(data)) == ["loss", "share", "share_0", "share_1", "share_2"]


def test_the_result_the_journal_and_the_page_have_the_tables(data, tmp_path, capsys):
    with Monitor(2, tmp_path, resources=False) as monitor:
        result = make(monitor=monitor).fit(data, epochs=2, batch_size=20, eval_data=data)
    assert result.tables["eval_confusion"]["labels"] == LABELS
    assert sum(map(sum, result.tables["eval_confusion"]["values"])) == 60
    assert result.tables["eval_f1"]["values"] == [result.metrics[f"eval_f1_{label}"] for label in LABELS]
    epochs = [entry.event.data for entry in read(tmp_path) if entry.event.kind == "epoch"]
    assert [list(epoch["tables"]) for epoch in epochs] == [["eval_f1", "eval_confusion"]] * 2
    assert list(epochs[1]["metrics"]) == ["loss", "lr", "eval_loss", "eval_f1"]
    history = snapshot(tmp_path)["history"]
    assert ["tables" in record for record in history] == [False, True]
    assert "ClassesPanel" in archive([tmp_path])
    shown = capsys.readouterr().out
    assert "eval_f1=" in shown
    assert "eval_f1_cat" not in shown


def test_a_hook_or_a_policy_may_watch_a_class(data, tmp_path):
    hooks, keep = [EarlyStopping("eval_f1_cat", mode="max")], last(1) | best("eval_f1_dog", mode="max")
    trainer = make(hooks=hooks, keep=keep, checkpoint_dir=tmp_path)
    assert trainer.fit(data, epochs=1, batch_size=20, eval_data=data).status == "finished"


@pytest.mark.parametrize("watching", ["hook", "policy"])
def test_watching_a_matrix_is_an_error_that_lists_numbers(data, tmp_path, watching):
    settings = {"checkpoint_dir": tmp_path}
    if watching == "hook":
        settings["hooks"] = [EarlyStopping("eval_confusion", mode="min")]
    else:
        settings["keep"] = best("eval_confusion", mode="min")
    with pytest.raises(
        TrainError, match=r"'eval_confusion', which is a matrix.* 'eval_f1_dog'.* Nothing was"
    ):
        make(**settings).fit(data, epochs=1, batch_size=20, eval_data=data)


def test_averaged_weights_have_tables_of_their_own(data):
    result = make(ema=0.9).fit(data, epochs=1, batch_size=20, eval_data=data)
    assert list(result.tables) == ["eval_f1", "eval_confusion", "eval_ema_f1", "eval_ema_confusion"]


def test_a_table_of_the_user_is_checked(tmp_path):
    with Monitor(1, tmp_path, console=False, resources=False) as monitor:
        with pytest.raises(MonitorError, match="2 labels and 1 value\\."):
            monitor.log(0, {"loss": 1.0}, tables={"f1": {"labels": ["a", "b"], "values": [0.5]}})
        monitor.log(0, {"loss": 1.0}, tables={"f1": {"labels": ["a", "b"], "values": [0.5, 1.0]}})


def test_the_direction_of_a_class_is_that_of_its_metric_whatever_its_label(data, tmp_path):
    labels = ["cat", "loss", "gap"]
    stopping, told = EarlyStopping("eval_f1_loss", patience=9), EarlyStopping("eval_f1_gap", mode="min")
    trainer = make(
        metrics={"f1": ClassF1(labels)},
        hooks=[stopping, told],
        checkpoint_dir=tmp_path,
        keep=last(1) | best("eval_f1_loss"),
    )
    assert (stopping.mode, told.mode) == ("max", "min")
    result = trainer.fit(data, epochs=3, batch_size=8, eval_data=data)
    highest = max(row["eval_f1_loss"] for row in result.history)
    assert result.best("eval_f1_loss")["eval_f1_loss"] == highest
    assert trainer.restore_best("eval_f1_loss").metrics["eval_f1_loss"] == highest


def test_the_direction_of_a_metric_with_a_neutral_name_is_the_same_everywhere(data, tmp_path, capsys):
    settings = {"metrics": {"per_class": ClassF1(LABELS)}, "checkpoint_dir": tmp_path}
    stopping = EarlyStopping("eval_per_class", patience=9)
    keep = last(9) | best("eval_per_class")
    trainer = make(**settings, keep=keep, hooks=[stopping], monitor=None)
    result = trainer.fit(data, epochs=3, batch_size=8, eval_data=data)
    assert stopping.mode == "max"
    done = make(**settings).fit(data, epochs=3, batch_size=8, eval_data=data)
    capsys.readouterr()
    for name in ("eval_per_class", "eval_per_class_dog"):
        highest = max(row[name] for row in result.history)
        assert highest > min(row[name] for row in result.history)
        assert result.best(name)[name] == done.best(name)[name] == highest
        assert result.best(name, mode="min")[name] < highest
        assert trainer.restore_best(name).metrics[name] == highest
        assert best_bundle(tmp_path, name).metrics[name] == highest
    assert "lower is better" not in capsys.readouterr().out
    found = summary(tmp_path, modes={"eval_per_class_dog": None})["metrics"]
    for name in ("eval_per_class", "eval_per_class_dog"):
        assert found[name]["mode"] == "max"
        assert found[name]["best"] == max(row[name] for row in result.history)


def test_a_table_of_the_user_may_have_a_direction(tmp_path):
    with Monitor(2, tmp_path, console=False, resources=False) as monitor:
        for epoch, value in enumerate([0.25, 0.5]):
            table = {"labels": ["a", "b"], "values": [value, value], "mode": "max"}
            monitor.log(epoch, {"per_class": value}, tables={"per_class": table})
        with pytest.raises(
            MonitorError, match="the mode of the table 'per_class' is 'up'\\. Expected one of"
        ):
            monitor.log(1, {"loss": 1.0}, tables={"per_class": {**table, "mode": "up"}})
    assert summary(tmp_path)["metrics"]["per_class"]["best"] == 0.5


def test_scores_whose_classes_may_be_two_dimensions_are_rejected_without_dim():
    scores, targets = torch.eye(3).repeat(2, 1, 1), torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(TrainError, match=r"may be the last or the second dimension.*dim=1.*dim=-1"):
        ConfusionMatrix(3).update(scores, targets)
    for dim in (1, -1):
        confusion = ConfusionMatrix(3, dim=dim)
        confusion.update(scores.cumsum(1), targets)
        assert (
            confusion.compute().sum(0).tolist()
            == scores.cumsum(1).argmax(dim).flatten().bincount(minlength=3).tolist()
        )


def test_scores_with_the_classes_in_the_second_dimension_need_dim():
    scores, targets = torch.randn(2, 3, 5), torch.zeros(2, 5, dtype=torch.long)
    with pytest.raises(TrainError, match=r"are the second dimension.*ClassF1\(…, dim=1\)"):
        ClassF1(3).update(scores, targets)
    ClassF1(3, dim=1).update(scores, targets)


def test_sequences_as_long_as_there_are_classes_are_accepted_after_others():
    confusion = ConfusionMatrix(3)
    for length in (5, 3):
        confusion.update(torch.randn(2, length, 3), torch.zeros(2, length, dtype=torch.long))
    assert confusion.compute().sum() == 16


def test_scores_with_nan_are_errors_of_their_class_and_no_prediction():
    scores = nn.functional.one_hot(PREDICTIONS, 3).float()
    scores[0, 2] = math.nan  # the prediction would be "ant"
    confusion, accuracy, f1 = ConfusionMatrix(LABELS), ClassAccuracy(LABELS), ClassF1(LABELS)
    for metric in (confusion, accuracy, f1):
        metric.update(scores, TARGETS)
    assert confusion.compute().tolist() == [[1, 1, 0], [0, 2, 0], [1, 0, 0]]
    assert accuracy.compute().tolist() == pytest.approx([1 / 3, 1.0, 0.0])
    assert f1.compute().tolist() == pytest.approx([2 / 5, 4 / 5, 0.0])


def test_class_ids_may_be_numpy_arrays():
    confusion = ConfusionMatrix(LABELS)
    confusion.update(PREDICTIONS.numpy(), TARGETS.numpy())
    assert confusion.compute().tolist() == [[2, 1, 0], [0, 2, 0], [1, 0, 0]]


def test_a_negative_prediction_is_rejected_where_there_is_a_target():
    with pytest.raises(TrainError, match="a prediction is class -1, and there are 3 classes: 0 to 2"):
        ConfusionMatrix(3).update(torch.tensor([-1]), torch.tensor([0]))
    ConfusionMatrix(3).update(torch.tensor([-1]), torch.tensor([-100]))


@pytest.mark.parametrize("kind", [ConfusionMatrix, ClassAccuracy, ClassF1])
def test_wrong_arguments_are_explained_with_the_name_of_the_class(kind):
    with pytest.raises(TrainError, match=rf"{kind.__name__} needs 'labels'. Write {kind.__name__}\(3\) or"):
        kind()
    with pytest.raises(
        TrainError, match=f"{kind.__name__} has no argument 'num_classes'. The first argument"
    ):
        kind(num_classes=3)


class Counted:
    """A metric in the form of torchmetrics, which grows by one with each evaluation."""

    def __init__(self, higher_is_better):
        self.higher_is_better, self.evaluations = higher_is_better, 0

    def reset(self):
        pass

    def update(self, predictions, targets):
        pass

    def compute(self):
        self.evaluations += 1
        return float(self.evaluations)


@pytest.mark.parametrize(
    ("name", "higher_is_better", "best_epoch"),
    [
        ("size", True, 3),
        ("size", False, 1),
        ("size", None, 1),
        ("accuracy", False, 1),
        ("accuracy", None, 3),
        ("loss_like", True, 3),
    ],
)
def test_the_direction_of_a_metric_is_that_of_its_object_before_that_of_its_name(
    tmp_path, data, name, higher_is_better, best_epoch
):
    trainer = make(
        metrics={name: Counted(higher_is_better)},
        checkpoint_dir=tmp_path / "run",
        keep=last(1) | best(f"eval_{name}"),
    )
    result = trainer.fit(data, epochs=3, batch_size=4, eval_data=data)
    assert result.best(f"eval_{name}")["epoch"] == best_epoch
    assert trainer.restore_best(f"eval_{name}").metrics[f"eval_{name}"] == best_epoch


def test_a_collection_of_metrics_has_the_directions_of_its_metrics():
    both = nn.ModuleDict()
    both.items = lambda: {"size": Counted(True), "accuracy": Counted(False)}.items()
    assert modes_of({"all": both}) == {"all_size": "max", "all_accuracy": "min"}

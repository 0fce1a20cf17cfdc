"""Loading the best kept weights after a run."""

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, Trainer
from flodl.checkpoint import best, best_bundle, last, list_bundles
from flodl.core import TrainError
from flodl.train import EarlyStopping


class Worsens:
    """Move the weights away from the solution after some epochs."""

    def __init__(self, model: nn.Module, *, after: int) -> None:
        self.model, self.after, self.epochs = model, after, 0
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_epoch_end(self) -> None:
        self.weights.append({name: value.clone() for name, value in self.model.state_dict().items()})
        self.epochs += 1
        if self.epochs >= self.after:
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.add_(1.0)


def run(make, data, folder, *, hooks=(), **settings) -> tuple[Trainer, Worsens]:
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    worsens = Worsens(model, after=3)
    trainer = make(model, checkpoint_dir=folder, hooks=[worsens, *hooks], **settings)
    trainer.fit(data, epochs=5, batch_size=10, eval_data=data)
    return trainer, worsens


def best_epoch(trainer: Trainer, metric: str = "eval_loss") -> int:
    return min(range(len(trainer.history)), key=lambda epoch: trainer.history[epoch][metric])


def test_the_best_kept_weights_are_loaded(make, data, tmp_path):
    trainer, worsens = run(make, data, tmp_path / "run", keep=last(1) | best("eval_loss"))
    epoch = best_epoch(trainer)
    assert epoch < 4
    bundle = trainer.restore_best()
    assert bundle.metrics["eval_loss"] == trainer.history[epoch]["eval_loss"]
    state = trainer.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in worsens.weights[epoch].items())
    assert trainer.evaluate(data)["loss"] == pytest.approx(bundle.metrics["eval_loss"])


def test_the_metric_and_its_direction_are_those_of_keep(make, data, tmp_path):
    trainer, _ = run(make, data, tmp_path / "run", keep=best("eval_loss", mode="max"))
    assert trainer.restore_best().metrics["eval_loss"] == max(row["eval_loss"] for row in trainer.history)


def test_the_metric_may_be_that_of_early_stopping_or_named(make, data, tmp_path):
    keep = last(9)
    trainer, _ = run(make, data, tmp_path / "run", hooks=[EarlyStopping("loss", patience=9)], keep=keep)
    assert trainer.restore_best().metrics["loss"] == min(row["loss"] for row in trainer.history)
    assert trainer.restore_best("loss", mode="max").metrics["loss"] == max(
        row["loss"] for row in trainer.history
    )


def test_a_metric_of_averaged_weights_loads_the_averages(make, data, tmp_path):
    trainer, _ = run(make, data, tmp_path / "run", keep=best("eval_ema_loss"), ema=0.5)
    bundle = trainer.restore_best()
    assert trainer.evaluate(data)["loss"] == pytest.approx(bundle.metrics["eval_ema_loss"], rel=1e-4)


def test_the_average_is_that_of_the_best_save_too(make, data, tmp_path):
    trainer, _ = run(make, data, tmp_path / "run", keep=last(1) | best("eval_loss"), ema=0.5)
    bundle = trainer.restore_best()
    values = trainer.evaluate(data)
    assert values["loss"] == pytest.approx(bundle.metrics["eval_loss"])
    assert values["ema_loss"] == pytest.approx(bundle.metrics["eval_ema_loss"], rel=1e-4)


def test_a_save_without_an_average_is_reported(make, data, tmp_path, capsys):
    run(make, data, tmp_path / "run", keep=best("eval_loss"))
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    again = make(model, checkpoint_dir=tmp_path / "run", keep=best("eval_loss"), ema=0.5, monitor=None)
    bundle = again.restore_best()
    assert again.evaluate(data)["ema_loss"] == pytest.approx(bundle.metrics["eval_loss"])
    captured = capsys.readouterr()
    assert "the save has no average (ema), which starts again from these weights" in (
        captured.err + captured.out
    )


def test_a_save_that_cannot_be_read_is_named(make, data, tmp_path, capsys):
    trainer, _ = run(make, data, tmp_path / "run", keep=last(1) | best("eval_loss"))
    damaged = trainer.restore_best().path / "manifest.json"
    damaged.write_text(damaged.read_text().replace('"step"', '"Step"'))
    capsys.readouterr()
    assert trainer.restore_best().path != damaged.parent
    err = capsys.readouterr().err
    assert f"skipping a bundle, which may be the best one: the bundle {str(damaged.parent)!r}" in err
    assert "not kept" not in err


def test_an_error_names_the_saves_if_none_can_be_read(make, data, tmp_path):
    trainer, _ = run(make, data, tmp_path / "run", keep=last(1))
    for manifest in tmp_path.glob("run/bundles/*/manifest.json"):
        manifest.write_text("{")
    with pytest.raises(TrainError, match=r"has no bundle that can be read: .*step"):
        trainer.restore_best("loss")


def test_a_better_epoch_that_was_not_kept_is_reported(make, data, tmp_path, capsys):
    trainer, _ = run(make, data, tmp_path / "run", keep=last(1))
    trainer.restore_best()
    err = capsys.readouterr().err
    assert err.count("not kept") == 1
    assert "its save was not kept. Trainer(keep=last(1) | best('eval_loss')) keeps the best one." in err


def run_with(values, make, data, folder, **settings):
    """Run one epoch for each value, which is the accuracy of its evaluation."""

    def on_evaluate_end(epoch, metrics):
        metrics["accuracy"] = values[epoch]

    trainer = make(checkpoint_dir=folder, hooks=[on_evaluate_end], **settings)
    return trainer, trainer.fit(data, epochs=len(values), batch_size=50, eval_data=data)


@pytest.mark.parametrize("values", [[0.5, 0.75, 0.75, 0.5], [0.5, 0.75, 0.25, 0.750000001, 0.25]])
def test_of_equal_epochs_the_first_one_is_the_best_kept_and_restored(make, data, tmp_path, values):
    keep = best("eval_accuracy") | last(1)
    trainer, result = run_with(values, make, data, tmp_path / "run", keep=keep)
    step = result.steps // len(values) * 2
    assert result.best("eval_accuracy")["epoch"] == 2
    assert [bundle.step for bundle in list_bundles(tmp_path / "run" / "bundles")] == [step, result.steps]
    assert trainer.restore_best().step == step
    assert best_bundle(tmp_path / "run", "eval_accuracy").step == step


@pytest.mark.parametrize("in_new_process", [False, True])
def test_an_epoch_that_is_better_only_by_rounding_is_not_reported(
    make, data, tmp_path, capsys, in_new_process
):
    values = [0.5, 0.750000001, 0.7, 0.75]
    trainer, _ = run_with(values, make, data, tmp_path / "run", keep=last(1))
    if in_new_process:
        trainer = make(checkpoint_dir=tmp_path / "run", keep=last(1))
    assert trainer.restore_best("eval_accuracy").metrics["eval_accuracy"] == 0.75
    assert "not kept" not in capsys.readouterr().err


@pytest.mark.parametrize("in_new_process", [False, True])
def test_a_better_epoch_that_was_not_saved_is_reported_with_save_every(
    make, data, tmp_path, capsys, in_new_process
):
    trainer, _ = run(make, data, tmp_path / "run", keep=best("eval_loss"), save_every=4)
    if in_new_process:
        model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        trainer = make(model, checkpoint_dir=tmp_path / "run", keep=best("eval_loss"), save_every=4)
    trainer.restore_best()
    err = capsys.readouterr().err
    assert err.count("not kept") == 1
    assert "Only epochs that are saved can be kept, and this run had save_every=4. save_every=1, the" in err
    assert "keep=last" not in err


def test_a_finished_run_can_restore_in_a_new_process(make, data, tmp_path):
    first, _ = run(make, data, tmp_path / "run", keep=last(1) | best("eval_loss"))
    want = first.restore_best()
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    again = make(model, checkpoint_dir=tmp_path / "run", keep=last(1) | best("eval_loss"))
    assert again.restore_best().step == want.step
    assert torch.equal(model[0].weight, first.model[0].weight)


@pytest.mark.parametrize(
    ("call", "settings", "words"),
    [
        (lambda t: t.restore_best(), {}, "nothing was saved. Write Trainer"),
        (lambda t: t.restore_best(mode="best"), {}, "mode='best'. Use 'min' or 'max'"),
        (
            lambda t: t.restore_best(),
            {"checkpoint_dir": "run"},
            "'.*run' does not exist.*Pass the folder of a run",
        ),
        (
            lambda t: t.restore_best(),
            {"checkpoint_dir": "run", "keep": best("eval_loss") | best("loss")},
            "watches 'eval_loss', 'loss'. Name one: restore_best.'eval_loss'.",
        ),
    ],
)
def test_what_cannot_be_restored_is_an_error(make, monkeypatch, tmp_path, call, settings, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainError, match=words):
        call(make(**settings))


def test_an_unknown_metric_names_the_known_ones(make, data, tmp_path):
    trainer = make(checkpoint_dir=tmp_path / "run")
    trainer.fit(data, epochs=1, batch_size=10)
    with pytest.raises(TrainError, match=r"none of 1 bundles has a value of 'eval_los'"):
        trainer.restore_best("eval_los")


def test_another_model_is_refused(make, data, tmp_path):
    trainer = make(checkpoint_dir=tmp_path / "run")
    trainer.fit(data, epochs=1, batch_size=10)
    other = make(nn.Linear(3, 1), checkpoint_dir=tmp_path / "run")
    with pytest.raises(TrainError, match=r"the save has no 'weight'\. It belongs to a different model"):
        other.restore_best("loss")


@pytest.mark.parametrize("monitor", [None, False])
def test_a_resume_after_restore_best_says_that_it_replaces_those_weights(
    make, data, tmp_path, capsys, monitor
):
    run(make, data, tmp_path / "run", keep=last(1) | best("eval_loss"))
    capsys.readouterr()
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    again = make(model, checkpoint_dir=tmp_path / "run", keep=last(1) | best("eval_loss"), monitor=monitor)
    step = again.restore_best().step
    again.fit(data, epochs=5, batch_size=10, eval_data=data)
    told = "".join(capsys.readouterr())
    assert told.count(f"restore_best had loaded the weights of step {step}, which this replaces") == 1


def resumed_on_other_data(make, data, folder):
    """Return a run of two epochs that is resumed for two more, with the targets of the evaluation turned."""
    x, y = data
    keep = last(1) | best("eval_loss")
    make(checkpoint_dir=folder, keep=keep).fit(data, epochs=2, batch_size=10, eval_data=data)
    trainer = make(checkpoint_dir=folder, keep=keep)
    trainer.fit(data, epochs=5, batch_size=10, eval_data=(x, y + 5.0))
    return trainer


def test_only_values_on_the_newest_evaluation_data_count_after_a_resume(make, data, tmp_path, capsys):
    trainer = resumed_on_other_data(make, data, tmp_path)
    losses = [row["eval_loss"] for row in trainer.history]
    assert min(losses[2:]) > max(losses[:2])
    capsys.readouterr()
    assert best_bundle(tmp_path, "eval_loss").metrics["eval_loss"] == min(losses[2:])
    assert trainer.restore_best().metrics["eval_loss"] == min(losses[2:])
    assert "better" not in "".join(capsys.readouterr())


def test_the_best_save_on_the_earlier_evaluation_data_is_kept_as_well(make, data, tmp_path):
    losses = [row["eval_loss"] for row in resumed_on_other_data(make, data, tmp_path).history]
    kept = {bundle.metrics["eval_loss"] for bundle in list_bundles(tmp_path / "bundles")}
    assert {min(losses[:2]), min(losses[2:])} <= kept
    assert len(kept) <= 3


def test_saves_of_a_run_with_the_same_evaluation_data_are_compared_after_a_resume(make, data, tmp_path):
    keep = last(1) | best("eval_loss", mode="max")
    for epochs in (2, 5):
        trainer = make(checkpoint_dir=tmp_path, keep=keep)
        trainer.fit(data, epochs=epochs, batch_size=10, eval_data=data)
    best_loss = max(row["eval_loss"] for row in trainer.history)
    assert best_bundle(tmp_path, "eval_loss", mode="max").metrics["eval_loss"] == best_loss


class Listed(nn.Module):
    """Its layers are in a plain list, so they are neither in its parameters nor in its state_dict."""

    def __init__(self, width=4):
        super().__init__()
        self.layers = [nn.Linear(3, width)]
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.layers[0](x).tanh())


def listed(make, folder, *, seed=0, width=4, with_layers=True):
    torch.manual_seed(seed)
    model = Listed(width)
    layers = model.layers[0].parameters() if with_layers else []
    optimizer = torch.optim.SGD([*model.parameters(), *layers], lr=0.1)
    return make(model, optimizer=optimizer, checkpoint_dir=folder, keep=best("eval_loss"))


@pytest.mark.parametrize("in_new_program", [True, False])
def test_parameters_that_only_the_optimizer_has_are_restored_too(
    make, data, tmp_path, capsys, in_new_program
):
    trainer = listed(make, tmp_path)
    trainer.fit(data, epochs=2, batch_size=10, eval_data=data)
    if in_new_program:
        trainer = listed(make, tmp_path, seed=1)
    else:
        with torch.no_grad():
            trainer.model.layers[0].weight.zero_()
    capsys.readouterr()
    bundle = trainer.restore_best()
    assert trainer.evaluate(data)["loss"] == pytest.approx(bundle.metrics["eval_loss"])
    told = capsys.readouterr()
    assert "restore_best" not in told.out + told.err


def test_weights_of_another_optimizer_are_left_out_with_a_warning(make, data, tmp_path, capsys):
    listed(make, tmp_path).fit(data, epochs=2, batch_size=10, eval_data=data)
    other = listed(make, tmp_path, seed=1, with_layers=False)
    before = other.model.layers[0].weight.clone()
    capsys.readouterr()
    bundle = other.restore_best()
    told = capsys.readouterr()
    text = " ".join((told.out + told.err).split())
    assert (
        "the run has also trained 2 parameters outside the model, which this optimizer does not have" in text
    )
    assert f"does not reproduce eval_loss {bundle.metrics['eval_loss']:g}" in text
    assert "restored the weights" not in text
    assert torch.equal(other.model.layers[0].weight, before)
    assert not torch.equal(other.model.head.weight, listed(make, None, seed=1).model.head.weight)


def test_nothing_is_loaded_into_some_of_the_parameters_outside_the_model(make, data, tmp_path, capsys):
    listed(make, tmp_path).fit(data, epochs=2, batch_size=10, eval_data=data)
    other = listed(make, tmp_path, seed=1)
    # The weight has another shape, the bias fits.
    other.model.layers[0].weight.data = torch.zeros(4, 2)
    before = other.model.layers[0].bias.clone()
    other.restore_best()
    assert torch.equal(other.model.layers[0].bias, before)
    told = capsys.readouterr()
    assert "parameters outside the model" in " ".join((told.out + told.err).split())


class Negated(nn.Linear):
    """Has the weights of a linear layer."""

    def forward(self, x):
        return -super().forward(x)


def plain(activation, last=nn.Linear):
    return nn.Sequential(nn.Linear(3, 8), activation, last(8, 1))


def as_graph(activation, last=nn.Linear):
    return FlowBuilder(nn.Linear(3, 8)).through(activation).through(last(8, 1)).build()


@pytest.mark.parametrize(
    ("build", "activation", "last", "words"),
    [
        (plain, nn.Tanh(), nn.Linear, "is now 'Tanh', was"),
        (as_graph, nn.Tanh(), nn.Linear, "is now 'Tanh', was"),
        # A graph names its nodes after their classes, so this one has weights of other names there.
        (plain, nn.ReLU(), Negated, "is now 'Negated(in_features=8, out_features=1"),
        (plain, nn.ReLU(), nn.Linear, ""),
        (as_graph, nn.ReLU(), nn.Linear, ""),
    ],
)
def test_a_new_program_whose_model_differs_from_the_saved_one_is_warned(
    make, data, tmp_path, capsys, build, activation, last, words
):
    folder = tmp_path / "run"
    make(build(nn.ReLU()), checkpoint_dir=folder).fit(data, epochs=1, batch_size=10, eval_data=data)
    capsys.readouterr()
    make(build(activation, last), checkpoint_dir=folder).restore_best()
    told = capsys.readouterr().err
    assert words in told
    assert ("restore_best: the model is not the one that was saved" in told) == bool(words)


def test_changes_to_a_model_during_a_run_are_not_reported_by_restore_best(make, data, tmp_path, capsys):
    trainer = make(plain(nn.Dropout(0.5)), checkpoint_dir=tmp_path / "run")
    trainer.fit(data, epochs=1, batch_size=10, eval_data=data)
    trainer.model[1].p = 0.1
    trainer.restore_best()
    assert "is not the one" not in capsys.readouterr().err


def test_a_second_trainer_waits_for_the_saves_of_the_first_one(make, data, tmp_path):
    def trainer():
        return make(checkpoint_dir=tmp_path / "run", keep=best("eval_loss"))

    first = trainer()
    while first.epochs < 3:
        for batch in first.epoch(data, batch_size=10, eval_data=data):
            first.step(batch)
    second = trainer()
    lowest = min(row["eval_loss"] for row in first.history)
    assert second.restore_best().metrics["eval_loss"] == lowest
    assert second.evaluate(data)["loss"] == pytest.approx(lowest)


def test_a_second_trainer_continues_right_after_the_first_one(make, data, tmp_path):
    first, second = (make(checkpoint_dir=tmp_path / "run") for _ in range(2))
    for batch in first.epoch(data, batch_size=10):
        first.step(batch)
    second.fit(data, epochs=2, batch_size=10)
    assert second.epochs == 2
    assert second.updates == 2 * first.updates


def test_epochs_before_the_evaluation_data_changed_are_not_compared(make, tmp_path, capsys):
    x = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    y = x[:, :1]
    train, first, other = (x, y), (x[:50], y[:50]), (x[:40], 9 + y[:40])

    def start(epochs, eval_data):
        trainer = make(checkpoint_dir=tmp_path / "run", keep=last(1))
        return trainer, trainer.fit(train, epochs=epochs, batch_size=50, eval_data=eval_data)

    start(2, first)
    trainer, result = start(4, other)
    assert min(result.history[:2], key=lambda row: row["eval_loss"])["eval_loss"] < 20
    assert result.best("eval_loss")["epoch"] > 2
    trainer.restore_best()
    _, again = start(5, other)
    assert again.best("eval_loss")["epoch"] > 2
    make(checkpoint_dir=tmp_path / "run", keep=last(1)).restore_best()
    told = capsys.readouterr().err
    assert "epoch 1" not in told
    assert "epoch 2" not in told

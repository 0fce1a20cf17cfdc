"""The callbacks of flodl know which direction of a metric is better."""

import pytest
import torch
from torch import nn

from flodl import FlowBuilder
from flodl.checkpoint import best, best_bundle, last, list_bundles
from flodl.core import TrainError
from flodl.train import EarlyStopping, Phase, ReduceOnPlateau


@pytest.mark.parametrize("callback", [EarlyStopping, ReduceOnPlateau])
def test_the_mode_follows_the_name_of_the_metric_unless_it_is_given(callback):
    assert "mode='max'" in repr(callback("eval_accuracy"))
    assert "mode='min'" in repr(callback("eval_loss"))
    assert "mode='min'" in repr(callback("eval_accuracy", mode="min"))
    assert "mode='max'" in repr(callback("eval_loss", mode="max"))


def test_early_stopping_waits_for_an_accuracy_to_rise():
    stopping = EarlyStopping("eval_accuracy", patience=2)
    assert [stopping.is_over(value) for value in (0.1, 0.2, 0.3, 0.25, 0.2)] == [False] * 4 + [True]


@pytest.mark.parametrize("callback", [EarlyStopping, ReduceOnPlateau])
def test_a_mean_that_is_only_rounded_differently_is_not_an_improvement(make, data, callback):
    # 253 of 300 samples are right, which are not the same in each epoch; a mean of float32 means.
    values = iter([0.8433333325386, 0.8433333349228, 0.8433333365122, 0.8433333381017, 0.8433333389999])

    def on_evaluate_end(metrics):
        metrics["accuracy"] = next(values)

    hooks = [on_evaluate_end, callback("eval_accuracy", patience=3, tol=0.0)]
    result = make(hooks=hooks).fit(data, epochs=5, batch_size=8, eval_data=data)
    if callback is EarlyStopping:
        assert len(result.history) == 4
    else:
        assert result.history[3]["lr"] < result.history[2]["lr"]
    assert result.best("eval_accuracy")["epoch"] == 1


def test_a_run_says_that_it_waits_for_a_metric_to_rise(make, data, capsys):
    def with_accuracy(model, x, y):
        loss = (model(x) - y).square().mean()
        return loss, {"accuracy": -loss}

    hooks = [EarlyStopping("accuracy"), EarlyStopping("loss")]
    make(step_fn=with_accuracy, hooks=hooks, monitor=None).fit(data, epochs=1, batch_size=8)
    shown = capsys.readouterr().out
    assert (
        shown.count("EarlyStopping('accuracy'): higher is better, judging by the name; mode='min' changes it")
        == 1
    )
    assert shown.count("higher is better") == 1


@pytest.mark.parametrize("hook", [EarlyStopping, ReduceOnPlateau])
@pytest.mark.parametrize(
    ("now", "said"),
    [
        (
            {"metric": "lr", "mode": "max"},
            "('lr', mode='max') starts from scratch: the saved best value is for 'loss'",
        ),
        (
            {"metric": "loss", "mode": "max"},
            "('loss', mode='max') starts from scratch: the saved best value is for mode='min'",
        ),
    ],
)
def test_a_resumed_hook_of_another_metric_or_mode_starts_from_scratch_and_says_so(
    make, data, tmp_path, capsys, hook, now, said
):
    make(checkpoint_dir=tmp_path, hooks=[hook("loss")]).fit(data, epochs=1, batch_size=8)
    again = hook(now["metric"], mode=now["mode"])
    trainer = make(checkpoint_dir=tmp_path, hooks=[again])
    trainer.fit(data, epochs=2, batch_size=8)
    assert again.state_dict()["best"] == trainer.history[1][now["metric"]]
    assert f"; {hook.__name__}{said}" in "".join(capsys.readouterr())
    make(checkpoint_dir=tmp_path, hooks=[hook(now["metric"], mode=now["mode"])]).fit(
        data, epochs=3, batch_size=8
    )
    assert "from scratch" not in "".join(capsys.readouterr())


def test_a_run_that_stopped_early_continues_if_another_metric_is_watched(make, data, tmp_path):
    stopping = EarlyStopping("loss", patience=1, tol=100.0)
    assert (
        make(checkpoint_dir=tmp_path, hooks=[stopping]).fit(data, epochs=5, batch_size=8).status == "stopped"
    )
    other = make(checkpoint_dir=tmp_path, hooks=[EarlyStopping("lr", patience=9)])
    assert other.fit(data, epochs=4, batch_size=8).status == "finished"


def test_a_metric_that_is_not_a_name_is_an_error():
    with pytest.raises(TrainError, match=r"EarlyStopping\(5\)\. Pass the name of a metric"):
        EarlyStopping(5)


@pytest.mark.parametrize("epoch", [-1, 1.0, "a"])
def test_a_phase_needs_an_epoch_that_can_come(epoch):
    with pytest.raises(TrainError, match="Pass the epoch, an integer counted from 0"):
        Phase(epoch)


def test_a_run_reports_a_direction_that_was_guessed(make, data, tmp_path, capsys):
    def with_quality(model, x, y):
        loss = (model(x) - y).square().mean()
        return loss, {"quality": -loss, "score": -loss}

    keep = best("quality") | best("score") | best("loss")
    trainer = make(
        step_fn=with_quality,
        hooks=[EarlyStopping("quality")],
        monitor=None,
        keep=keep,
        checkpoint_dir=tmp_path,
    )
    result = trainer.fit(data, epochs=1, batch_size=8)
    result.best("quality")
    result.best("quality", mode="max")
    result.best("score")
    shown = capsys.readouterr().out
    guess = "lower is better, as the name says nothing else; mode='max' changes it"
    assert f"EarlyStopping('quality'): {guess}" in shown
    assert f"keep=best('quality'): {guess}" in shown
    assert f"  best('quality'): {guess}" in shown
    assert shown.count(guess) == 3


def test_a_phase_after_the_last_epoch_causes_a_warning(make, data, capsys):
    hooks = [Phase(2, thaw=["head"]), Phase(9, freeze=["head"])]
    model = FlowBuilder(nn.Linear(3, 1)).tag("head").build()
    make(model, hooks=hooks).fit(data, epochs=2, batch_size=8)
    warnings = [line for line in capsys.readouterr().err.splitlines() if "has no effect" in line]
    assert len(warnings) == 2
    assert "Phase(2, freeze=[], thaw=['head'], eval_mode=False) has no effect" in warnings[0]
    assert "the last one of this run is 1" in warnings[0]


def evaluated_every_second_epoch(trainer, data, epochs):
    while trainer.epochs < epochs and not trainer.stop_reason:
        eval_data = data if trainer.epochs % 2 == 0 else None
        for batch in trainer.epoch(data, 8, eval_data=eval_data):
            trainer.step(batch)


def test_epochs_of_a_loop_without_the_watched_metric_do_not_count(make, data, tmp_path):
    def new(**settings):
        return make(optimizer=lambda groups: torch.optim.SGD(groups, lr=0.0), **settings)

    stopped = new(
        hooks=[EarlyStopping("eval_loss", patience=2)], checkpoint_dir=tmp_path, keep=best("eval_loss")
    )
    evaluated_every_second_epoch(stopped, data, 9)
    assert (stopped.epochs, "eval_loss" in stopped.history[1]) == (5, False)
    reduced = new(hooks=[ReduceOnPlateau("eval_loss", patience=2)])
    evaluated_every_second_epoch(reduced, data, 5)
    assert [bundle.metrics["loss"] for bundle in list_bundles(tmp_path / "bundles")]
    assert best_bundle(tmp_path / "bundles", "eval_loss").step in (3, 9, 15)
    assert "eval_loss has not improved for 2 epochs" in stopped.stop_reason


def test_a_resumed_loop_may_begin_with_an_epoch_that_is_not_evaluated(make, data, tmp_path):
    def new():
        stopping = EarlyStopping("eval_loss", patience=5)
        return make(hooks=[stopping], checkpoint_dir=tmp_path, keep=best("eval_loss"))

    for epochs in (1, 4):
        trainer = new()
        with trainer.running(epochs):
            trainer.resume(data, 8)
            evaluated_every_second_epoch(trainer, data, epochs)
    assert [("eval_loss" in row) for row in trainer.history] == [True, False, True, False]


def test_a_metric_that_no_epoch_has_is_still_an_error(make, data):
    trainer = make(hooks=[EarlyStopping("eval_los")], dry_pass=False)
    with pytest.raises(TrainError, match="watches 'eval_los', which this run does not have"):
        trainer.fit(data, epochs=2, batch_size=8, eval_data=data)
    again = make(hooks=[EarlyStopping("eval_loss", patience=9)])
    again.fit(data, epochs=1, batch_size=8, eval_data=data)
    with pytest.raises(TrainError, match="Pass eval_data to have it"):
        again.fit(data, epochs=2, batch_size=8)


@pytest.mark.parametrize(("name", "better"), [("made", "lower"), ("made_corr", "higher")])
def test_a_direction_that_the_name_decides_is_reported_without_a_monitor(make, data, capsys, name, better):
    def step_fn(model, x, y):
        return (model(x) - y).square().mean(), {name: x.mean() * 0}

    trainer = make(None, step_fn, hooks=[EarlyStopping(name, patience=1)])
    trainer.fit(data, epochs=3, batch_size=8)
    assert f"EarlyStopping({name!r}): {better} is better" in capsys.readouterr().out
    assert trainer.stop_reason == f"{name} has not improved for 1 epoch (best 0; {better} is better)"


def test_a_metric_that_a_hook_adds_every_second_epoch_can_be_watched(make, data, tmp_path):
    def on_epoch_end(epoch, metrics):
        if epoch % 2:
            metrics["fid"] = 1.0

    hooks = [on_epoch_end, EarlyStopping("fid", patience=2), ReduceOnPlateau("fid", patience=9)]
    trainer = make(hooks=hooks, checkpoint_dir=tmp_path / "run", keep=last(1) | best("fid"))
    result = trainer.fit(data, epochs=9, batch_size=10)
    assert ["fid" in row for row in result.history] == [False, True] * 3
    assert trainer.restore_best("fid").metrics["fid"] == 1.0


def test_a_metric_that_no_hook_ever_added_is_reported_at_the_end(make, data, capsys):
    def on_epoch_end(epoch, metrics):
        if epoch > 5:
            metrics["fid"] = 1.0

    make(hooks=[on_epoch_end, EarlyStopping("fid")]).fit(data, epochs=3, batch_size=10)
    err = capsys.readouterr().err
    assert err.count("EarlyStopping watches 'fid', which no epoch of this run has") == 1


def test_a_phase_that_freezes_and_thaws_the_same_path_raises():
    with pytest.raises(TrainError, match=r"Phase\(1\) freezes and thaws 'encoder' in the same epoch"):
        Phase(1, freeze=["encoder"], thaw=["head", "encoder"])
    Phase(1, freeze=["encoder"], thaw=["encoder.head"])


class AddsGap:
    """Adds a metric that does not improve after the first epoch."""

    def on_epoch_end(self, metrics, epoch):
        metrics["gap"] = 1.0 + epoch


@pytest.mark.parametrize("watcher_first", [True, False])
def test_a_metric_that_a_hook_adds_is_watched_before_or_after_that_hook(make, data, watcher_first):
    watcher = EarlyStopping("gap", patience=2)
    hooks = [watcher, AddsGap()] if watcher_first else [AddsGap(), watcher]
    result = make(hooks=hooks).fit(data, epochs=9, batch_size=10)
    assert (result.status, len(result.history)) == ("stopped", 3)


@pytest.mark.parametrize("watcher_first", [True, False])
def test_a_rate_falls_with_a_metric_that_a_later_hook_adds_in_the_same_epoch(make, data, watcher_first):
    watcher = ReduceOnPlateau("gap", patience=1, factor=0.5)
    hooks = [watcher, AddsGap()] if watcher_first else [AddsGap(), watcher]
    result = make(hooks=hooks).fit(data, epochs=3, batch_size=10)
    assert [row["lr"] for row in result.history] == pytest.approx([0.1, 0.05, 0.025])


def test_a_hook_after_a_watcher_whose_metric_exists_sees_what_it_did(make, data):
    seen = []

    def on_epoch_end(trainer):
        seen.append((trainer.stop_reason != "", trainer.optimizer.param_groups[0]["lr"]))

    watchers = [EarlyStopping("lr", patience=1, mode="max"), ReduceOnPlateau("lr", patience=1, mode="max")]
    make(hooks=[*watchers, on_epoch_end]).fit(data, epochs=3, batch_size=10)
    assert seen == [(False, 0.1), (True, pytest.approx(0.01))]


@pytest.mark.parametrize("value", [None, "high", torch.zeros(3), [0.5, 0.5], {"mean": 0.5}])
@pytest.mark.parametrize("watcher", [EarlyStopping, ReduceOnPlateau])
def test_a_watched_metric_that_a_hook_sets_to_something_other_than_a_number_is_named(
    make, data, value, watcher
):
    def on_epoch_end(epoch, metrics):
        metrics["f1"] = 0.5 if epoch == 0 else value

    with pytest.raises(TrainError, match=r"a hook sets the metric 'f1' to .* Set it to one number"):
        make(hooks=[on_epoch_end, watcher("f1")]).fit(data, epochs=3, batch_size=8)

"""A trainer records its metrics in a graph, next to those that the program records."""

import pytest
from torch import nn

from flodl import FlowBuilder
from flodl.core import MetricError


@pytest.fixture
def model():
    return FlowBuilder().through(nn.Linear(3, 1)).build()


def test_what_a_hook_records_at_the_end_of_an_epoch_belongs_to_this_epoch(make, model, data):
    def on_epoch_end(epoch):
        model.record("q", epoch + 1)

    make(model, hooks=[on_epoch_end]).fit(data, epochs=3, batch_size=8)
    assert list(model.trend("q").values) == [1.0, 2.0, 3.0]
    assert model.trend("q").epochs == model.trend("loss").epochs


def test_a_second_end_of_an_epoch_in_a_hook_is_ignored_and_reported_once(make, model, data, capsys):
    def on_epoch_end(epoch):
        model.record("q", epoch + 1)
        model.end_epoch()

    make(model, hooks=[on_epoch_end]).fit(data, epochs=3, batch_size=8)
    assert model.epoch_count == 3
    assert list(model.trend("q").values) == [1.0, 2.0, 3.0]
    assert capsys.readouterr().err.count("remove the call of end_epoch()") == 1
    model.end_epoch()
    assert model.epoch_count == 4


def test_a_second_end_of_an_epoch_in_a_loop_is_reported_once(make, model, data, capsys):
    trainer = make(model)
    for _ in range(3):
        for batch in trainer.epoch(data, 8):
            trainer.step(batch)
        model.end_epoch()
    assert capsys.readouterr().err.count("remove the call of end_epoch()") == 1


def test_recording_a_metric_of_the_trainer_is_an_error_in_the_first_step(make, model, data):
    def step_fn(model, x, y):
        loss = (model(x) - y).square().mean()
        model.record("loss", loss)
        return loss

    trainer = make(model, step_fn)
    with pytest.raises(MetricError, match=r"the Trainer records 'loss' itself.* record\('loss_2', value\)"):
        trainer.fit(data, epochs=1, batch_size=8)
    assert trainer.updates == 1


def test_recording_a_metric_of_the_trainer_in_a_hook_is_an_error(make, model, data):
    def on_epoch_end():
        model.record("loss", 1.0)

    with pytest.raises(MetricError, match="the Trainer records 'loss' itself"):
        make(model, hooks=[on_epoch_end]).fit(data, epochs=1, batch_size=8)


def test_a_loop_that_records_the_loss_may_come_before_and_after_a_trainer(make, model, data):
    for _ in range(2):
        model.record("loss", 1.0)
        model.end_epoch()
        make(model).fit(data, epochs=1, batch_size=8)
    assert model.epoch_count == 4


def test_the_trends_of_a_graph_begin_again_with_each_new_run_and_continue_within_one(make, model, data):
    make(model).fit(data, epochs=3, batch_size=8)
    lengths = []

    def on_epoch_end(trainer):
        lengths.append(len(model.trend("loss")))
        assert model.trend("loss").values == trainer.trend("loss").values
        assert model.trend("loss").latest == model.latest_metrics()["loss"]

    trainer = make(model, hooks=[on_epoch_end])
    trainer.fit(data, epochs=2, batch_size=8)
    trainer.fit(data, epochs=4, batch_size=8)
    assert lengths == [1, 2, 3, 4]
    assert model.eta(6) > 0.0
    assert model.epoch_count == 7


def test_exports_have_the_epochs_of_all_runs(make, model, data, tmp_path):
    for _ in range(2):
        make(model).fit(data, epochs=2, batch_size=8)
    rows = model.export_trends(tmp_path / "trends.csv").read_text().splitlines()
    assert len(rows) == 1 + 4


def test_a_resumed_run_keeps_the_trends_of_its_own_epochs_only(make, model, data, tmp_path):
    make(model).fit(data, epochs=3, batch_size=8)
    make(model, checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=8)
    resumed = FlowBuilder().through(nn.Linear(3, 1)).build()
    make(resumed, checkpoint_dir=tmp_path).fit(data, epochs=3, batch_size=8)
    assert len(resumed.trend("loss")) == 3
    assert resumed.epoch_count == 6

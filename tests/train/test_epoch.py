"""An epoch is one that was trained, and its metrics include those of hooks."""

import json
from contextlib import nullcontext

import pytest
import torch

from flodl import Loader
from flodl.checkpoint import best, list_bundles
from flodl.core import TrainError
from flodl.monitor import Monitor
from flodl.optim import CosineScheduler
from flodl.train import EarlyStopping


@pytest.mark.parametrize("is_open", [False, True])
def test_an_epoch_without_a_step_is_an_error(make, data, is_open):
    trainer = make()

    def loop():
        for _ in trainer.epoch(data, batch_size=8):
            pass

    context = trainer.running(1) if is_open else nullcontext()
    with pytest.raises(TrainError, match=r"none of its batches was passed to trainer.step: "), context:
        loop()
    assert trainer.epochs == 0


def test_a_loop_may_leave_out_batches_or_use_the_step_underneath(make, data):
    trainer = make()
    for index, batch in enumerate(trainer.epoch(data, batch_size=8)):
        if index == 1:
            trainer.step(batch)
    for batch in trainer.epoch(data, batch_size=8):
        trainer.train_step(*batch)
    assert trainer.epochs == 2


def test_an_epoch_beyond_those_of_an_open_run_is_an_error(make, data):
    trainer = make()

    def loop():
        for _ in range(3):
            for batch in trainer.epoch(data, batch_size=8):
                trainer.step(batch)

    with pytest.raises(TrainError, match=r"running\(2\) was opened for 2 epochs, and"), trainer.running(2):
        loop()
    assert trainer.epochs == 2


class Adds:
    """Add a metric at the end of an epoch."""

    def __init__(self, value):
        self.value = value

    def on_epoch_end(self, epoch, metrics):
        metrics["mine"] = self.value(epoch)


def test_a_metric_of_a_hook_is_in_the_history_the_bundles_and_the_policy(make, data, tmp_path):
    hooks = [Adds(lambda epoch: torch.tensor([3.0, 1.0, 2.0][epoch])), EarlyStopping("mine", patience=3)]
    trainer = make(hooks=hooks, checkpoint_dir=tmp_path, keep=best("mine"))
    result = trainer.fit(data, epochs=3, batch_size=8)
    assert [row["mine"] for row in result.history] == [3.0, 1.0, 2.0]
    assert result.best("mine")["epoch"] == 2
    assert trainer.trend("mine").values == [3.0, 1.0, 2.0]
    assert [bundle.metrics["mine"] for bundle in list_bundles(tmp_path / "bundles")] == [1.0, 2.0]
    assert json.dumps(result.history)


@pytest.mark.parametrize("value", ["high", None, torch.ones(2), [1.0]])
def test_a_metric_of_a_hook_that_is_not_one_number_is_an_error(make, data, value):
    with pytest.raises(TrainError, match=r"a hook sets the metric 'mine' to .* Set it to one number"):
        make(hooks=[Adds(lambda _: value)]).fit(data, epochs=1, batch_size=8)


def test_continuing_with_data_of_another_size_is_reported(make, data, capsys):
    more = tuple(part.repeat(2, 1) for part in data)
    for schedule, stream in ((None, "out"), (CosineScheduler(0.1, 0.01, 100), "err")):
        trainer = make(schedule=schedule, monitor=False if schedule else None)
        trainer.fit(data, epochs=1, batch_size=5)
        trainer.fit(data, epochs=2, batch_size=5)
        capsys.readouterr()
        trainer.fit(more, epochs=3, batch_size=5)
        shown = getattr(capsys.readouterr(), stream)
        assert (
            "continues at epoch 3, after 8 updates, with epochs of a different length: 8 batches instead of 4"
            in shown
        )
        assert ("the schedule, which counts updates" in shown) == (schedule is not None)


def test_a_fit_on_other_data_that_trains_nothing_is_reported(make, data, capsys):
    trainer = make()
    trainer.fit(data, epochs=1, batch_size=5)
    assert capsys.readouterr().err == ""
    trainer.fit(tuple(part.clone() for part in data), epochs=1, batch_size=5)
    assert "1 epoch is done. epochs=1 is a total, and the data of this call was not used: write epochs=2" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("monitor", [False, None])
def test_a_loop_over_fit_with_the_same_total_is_reported_once(make, data, capsys, monitor):
    trainer = make(monitor=monitor)
    for _ in range(4):
        trainer.fit(data, epochs=1, batch_size=5)
    shown = capsys.readouterr().err
    assert shown.count("nothing is left to train: 1 epoch is done. epochs=1 is a total over all calls") == 1
    assert "trainer.fit(…, epochs=trainer.epochs + 1), or loop over trainer.epoch(data)" in shown


def test_a_resumed_run_that_is_complete_causes_no_warning(make, data, tmp_path, capsys):
    make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=5)
    capsys.readouterr()
    trainer = make(checkpoint_dir=tmp_path)
    trainer.fit(data, epochs=1, batch_size=5)
    trainer.fit(data, epochs=2, batch_size=5)
    assert capsys.readouterr().err == ""


def test_metrics_without_data_for_an_evaluation_are_mentioned(make, data, capsys):
    class Zero:
        def reset(self): ...
        def update(self, predictions, targets): ...
        def compute(self):
            return 0.0

    trainer = make(metrics={"zero": Zero()}, monitor=None)
    trainer.fit(data, epochs=1, batch_size=8)
    assert (
        "no eval_data, so metrics ('zero') are computed only by trainer.evaluate" in capsys.readouterr().out
    )
    trainer.fit(data, epochs=2, batch_size=8, eval_data=data)
    assert "no eval_data" not in capsys.readouterr().out


def test_a_monitor_shows_the_epochs_of_a_second_fit(make, data, capsys):
    with Monitor(resources=False) as monitor:
        trainer = make(monitor=monitor)
        trainer.fit(data, epochs=2, batch_size=8)
        trainer.fit(data, epochs=3, batch_size=8)
    shown = capsys.readouterr().out
    assert "epoch 2/2" in shown
    assert "epoch 3/3" in shown


@pytest.mark.parametrize("is_open", [False, True])
def test_a_loop_that_starts_from_scratch_in_the_folder_of_a_run_is_an_error(make, data, tmp_path, is_open):
    make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    before = [(bundle.step, bundle.path.name) for bundle in list_bundles(tmp_path / "bundles")]
    config = (tmp_path / "config.json").read_text()
    trainer = make(checkpoint_dir=tmp_path)

    def loop():
        for batch in trainer.epoch(data, batch_size=8):
            trainer.step(batch)

    context = trainer.running(1) if is_open else nullcontext()
    with (
        pytest.raises(TrainError, match=r"contains a run up to step \d+, but .* trainer.resume\(data\)"),
        context,
    ):
        loop()
    assert [(bundle.step, bundle.path.name) for bundle in list_bundles(tmp_path / "bundles")] == before
    assert (tmp_path / "config.json").read_text() == config


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loop_of_steps_alone_in_the_folder_of_a_run_is_an_error(make, data, tmp_path, accumulate):
    make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    trainer = make(checkpoint_dir=tmp_path, accumulate=accumulate)
    with pytest.raises(TrainError, match=r"contains a run up to step \d+, but .* trainer.resume\(data\)"):
        trainer.step(*data)
    assert trainer.train_step.steps == 0
    trainer.resume(data, batch_size=8)
    trainer.step(*data)


def test_a_loop_after_resume_continues_the_run_of_its_folder(make, data, tmp_path):
    first = make(checkpoint_dir=tmp_path)
    first.fit(data, epochs=1, batch_size=8)
    trainer = make(checkpoint_dir=tmp_path)
    assert trainer.resume(data, batch_size=8)
    for batch in trainer.epoch(data, batch_size=8):
        trainer.step(batch)
    assert trainer.epochs == 2
    assert trainer.updates == 2 * first.updates


def test_an_epoch_that_was_left_and_begins_again_with_other_data_is_reported_once(make, data, capsys):
    trainer, other = make(), tuple(part.clone() for part in data)
    for train_data in (data, other, data):
        for batch in trainer.epoch(train_data, 5):
            trainer.step(batch)
            break
    message = "epoch 1 was left after 1 batch and begins again with different data"
    assert capsys.readouterr().err.count(message) == 1


def test_an_epoch_that_was_left_and_continues_with_the_same_data_is_not_reported(make, data, capsys):
    trainer = make()
    for _ in range(3):
        for batch in trainer.epoch(data, 5):
            trainer.step(batch)
            break
    for train_data in (data, tuple(part.clone() for part in data)):
        for batch in trainer.epoch(train_data, 5):
            trainer.step(batch)
    assert "was left after" not in capsys.readouterr().err


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_step_outside_of_an_epoch_is_reported_once(make, data, tmp_path, capsys, has_folder):
    trainer = make(checkpoint_dir=tmp_path / "run" if has_folder else None)
    for batch in Loader(data, 5):
        trainer.step(batch)
    told = capsys.readouterr()
    out = told.err if has_folder else told.out
    assert out.count("trainer.step was called outside of trainer.epoch, so no epoch is counted") == 1
    assert ("no save" in out) is has_folder
    assert has_folder or not told.err


def test_a_step_inside_of_an_epoch_is_not_reported(make, data, tmp_path, capsys):
    trainer = make(checkpoint_dir=tmp_path / "run")
    for x, y in trainer.epoch(data, 5):
        trainer.step(x, y)
        trainer.step(x + 1, y)
    batch = next(iter(trainer.epoch(data, 5)))  # as a loop does that is left at once
    trainer.step(batch)
    trainer.save()
    resumed = make(checkpoint_dir=tmp_path / "run")
    assert resumed.resume(data, 5)
    for batch in resumed.epoch(data, 5):
        resumed.step(batch)
    told = capsys.readouterr()
    assert "outside of" not in told.out + told.err


def frozen(groups):
    return torch.optim.SGD(groups, lr=0.0)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("is_saved", [False, True])
def test_a_step_outside_of_an_epoch_is_not_in_the_row_of_one(make, data, tmp_path, accumulate, is_saved):
    def losses(name, *, steps_outside):
        settings = {"checkpoint_dir": tmp_path / name} if is_saved else {}
        settings = {"optimizer": frozen, "accumulate": accumulate, "seed": 1, **settings}
        trainer = make(**settings)
        trainer.fit(data, epochs=1, batch_size=5)
        for _ in range(steps_outside):
            trainer.step(100 * data[0], data[1])
        if is_saved:
            trainer.save()
            trainer = make(**settings)
        return [row["loss"] for row in trainer.fit(data, epochs=2, batch_size=5).history]

    assert losses("a", steps_outside=accumulate) == losses("b", steps_outside=0)


def test_the_batch_at_which_a_loop_was_left_is_in_the_row_of_its_epoch(make, data):
    rows = []
    for leaves in (False, True):
        trainer = make(optimizer=frozen, seed=1)
        if leaves:
            for batch in trainer.epoch(data, 5):  # noqa: B007
                break
            trainer.step(*batch)
        for batch in trainer.epoch(data, 5):
            trainer.step(batch)
        rows.append(trainer.history)
    assert rows[0] == rows[1]


def test_steps_outside_of_a_run_do_not_count_as_changed_weights(make, data, capsys):
    trainer = make()
    trainer.fit(data, epochs=1, batch_size=5)
    trainer.step(data)
    trainer.fit(data, epochs=2, batch_size=5)
    for batch in trainer.epoch(data, 5):
        trainer.step(batch)
    trainer.fit(data, epochs=4, batch_size=5)
    told = capsys.readouterr()
    assert "since this trainer trained last" not in told.out + told.err

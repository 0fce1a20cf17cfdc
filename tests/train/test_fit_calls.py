"""A program with several calls of `fit`, stopped anywhere and started again."""

import json

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, Loader
from flodl.core import TrainError
from flodl.optim import CosineScheduler
from flodl.train import EarlyStopping


class Stopped(Exception):
    """Stands for a kill right after a save."""


def stop_at(stop):
    def on_step_end(trainer, step):
        if step == stop:
            trainer.save()
            raise Stopped

    return on_step_end


@pytest.fixture
def datasets():
    torch.manual_seed(1)
    x = torch.randn(24, 3)
    return (x[:20], x[:20].sum(1, keepdim=True).tanh()), (x.flip(1), x.prod(1, keepdim=True).tanh())


@pytest.fixture
def program(make, datasets, tmp_path):
    """Return a program of two phases with other data, freezing and random numbers in between."""

    def run(stop=0, *, folder="run", calls=(2, 4), between=None, **settings):
        easy, hard = datasets
        torch.manual_seed(0)
        model = FlowBuilder(nn.Linear(3, 8)).tag("body").through(nn.Dropout(0.2)).through(nn.Linear(8, 1))
        hooks = [stop_at(stop), *settings.pop("hooks", ())]
        trainer = make(model.build(), checkpoint_dir=tmp_path / folder, hooks=hooks, **settings)
        trainer.model.freeze("body")
        trainer.fit(easy, epochs=calls[0], batch_size=4)
        trainer.model.thaw("body")
        if between is not None:
            between(trainer)
        for epochs in calls[1:]:
            trainer.fit(hard, epochs=epochs, batch_size=4, eval_data=hard)
        return trainer

    return run


def weights(trainer):
    return [value.tolist() for value in trainer.model.state_dict().values()]


@pytest.mark.parametrize("stop", [3, 5, 9, 10, 11, 13, 16, 17, 22])
def test_a_program_with_two_calls_of_fit_resumes_in_the_call_that_was_stopped(program, stop):
    def draw(trainer):
        torch.randn(5)

    whole = program(folder="whole", between=draw)
    with pytest.raises(Stopped):
        program(stop, between=draw)
    resumed = program(between=draw)
    assert (resumed.updates, resumed.history, weights(resumed)) == (
        whole.updates,
        whole.history,
        weights(whole),
    )


def test_a_program_with_three_calls_is_stopped_twice(program):
    whole = program(folder="whole", calls=(1, 2, 4))
    for stop in (7, 18):
        with pytest.raises(Stopped):
            program(stop, calls=(1, 2, 4))
    resumed = program(calls=(1, 2, 4))
    assert (resumed.history, weights(resumed)) == (whole.history, weights(whole))


def test_a_finished_program_with_two_calls_can_be_started_again(program):
    whole = program()
    again = program()
    assert (again.updates, again.history, weights(again)) == (whole.updates, whole.history, weights(whole))


def test_a_call_that_was_completed_trains_nothing_and_says_so(program, capsys):
    with pytest.raises(Stopped):
        program(13)
    capsys.readouterr()
    program(monitor=None)
    printed = "".join(capsys.readouterr())
    assert "this call, fit(epochs=2), had already completed, so there is nothing to train" in printed
    assert "nothing is left to train" not in printed
    assert "data.content" not in printed


def test_other_data_in_the_call_that_was_stopped_is_reported(program, datasets, capsys):
    with pytest.raises(Stopped):
        program(13)
    datasets[1][1].add_(1)
    capsys.readouterr()
    program(monitor=None)
    assert "data.content is now" in "".join(capsys.readouterr())


def test_weights_loaded_between_the_calls_are_those_of_the_saved_run(program):
    def restart(trainer):
        with torch.no_grad():
            trainer.model.get_parameter("linear_2.weight").zero_()

    whole = program(folder="whole", between=restart)
    with pytest.raises(Stopped):
        program(13, between=restart)
    assert weights(program(between=restart)) == weights(whole)


def scale_rate(trainer):
    trainer.scale_lr(0.1)


def scale_weight_decay(trainer):
    for group in trainer.optimizer.param_groups:
        group["weight_decay"] = (group["weight_decay"] + 0.01) * 2


def settings_of(folder):
    record = json.loads((folder / "config.json").read_text())
    return record["trainer"]["optimizer_settings"], [start.get("changed") for start in record["starts"]]


@pytest.mark.parametrize("schedule", [None, CosineScheduler(0.1, 0.01, 30)])
@pytest.mark.parametrize("between", [scale_rate, scale_weight_decay])
def test_settings_scaled_between_the_calls_are_scaled_once(program, tmp_path, capsys, between, schedule):
    whole = program(folder="whole", between=between, schedule=schedule)
    with pytest.raises(Stopped):
        program(14, between=between, schedule=schedule)
    capsys.readouterr()
    for _ in range(2):  # the second one finds a finished run
        resumed = program(between=between, schedule=schedule, monitor=None)
        assert (resumed.history, weights(resumed)) == (whole.history, weights(whole))
        assert "continues with its saved" not in "".join(capsys.readouterr())
    settings, changes = settings_of(tmp_path / "run")
    wanted, wanted_changes = settings_of(tmp_path / "whole")
    assert settings == wanted
    key = "trainer.optimizer_settings"
    rate_changes = [[one for path, one in (each or {}).items() if path.startswith(key)] for each in changes]
    wanted_rates = [
        [one for path, one in (each or {}).items() if path.startswith(key)] for each in wanted_changes
    ]
    assert [each for each in rate_changes if each] == [each for each in wanted_rates if each]


def test_another_rate_between_the_calls_is_reported_and_ignored(program, capsys):
    def set_rate(rate):
        def between(trainer):
            for group in trainer.optimizer.param_groups:
                group["lr"] = rate

        return between

    with pytest.raises(Stopped):
        program(14, between=set_rate(0.01))
    capsys.readouterr()
    resumed = program(between=set_rate(0.001), monitor=None)
    assert "the optimizer continues with its saved lr of 0.01, not 0.001" in "".join(capsys.readouterr())
    assert resumed.history[-1]["lr"] == 0.01


def test_a_first_call_that_stopped_early_is_not_repeated(program):
    def hooks():
        return [EarlyStopping("loss", patience=1, mode="max")]

    whole = program(folder="whole", hooks=hooks(), calls=(5, 8))
    stops = len(whole.history)
    assert stops < 8
    with pytest.raises(Stopped):
        program(whole.updates - 2, hooks=hooks(), calls=(5, 8))
    resumed = program(hooks=hooks(), calls=(5, 8))
    assert (resumed.history, weights(resumed)) == (whole.history, weights(whole))


def test_a_program_with_one_call_in_the_folder_of_two_continues(program, make, datasets, tmp_path):
    program()
    model = FlowBuilder(nn.Linear(3, 8)).tag("body").through(nn.Dropout(0.2)).through(nn.Linear(8, 1))
    trainer = make(model.build(), checkpoint_dir=tmp_path / "run")
    assert len(trainer.fit(datasets[1], epochs=5, batch_size=4).history) == 5
    with pytest.raises(TrainError, match="epochs=3, but this run has already completed 5"):
        make(model.build(), checkpoint_dir=tmp_path / "run").fit(datasets[1], epochs=3, batch_size=4)


def test_an_interrupted_call_that_is_made_again_counts_once(make, datasets, tmp_path):
    trainer = make(checkpoint_dir=tmp_path, hooks=[stop_at(7)])
    with pytest.raises(Stopped):
        trainer.fit(datasets[0], epochs=2, batch_size=4)
    trainer.fit(datasets[0], epochs=3, batch_size=4)
    assert len(make(checkpoint_dir=tmp_path).fit(datasets[0], epochs=4, batch_size=4).history) == 4


def test_fewer_epochs_in_the_middle_of_an_epoch_are_rejected(make, datasets, tmp_path):
    with pytest.raises(Stopped):
        make(checkpoint_dir=tmp_path, hooks=[stop_at(12)]).fit(datasets[0], epochs=4, batch_size=4)
    trainer = make(checkpoint_dir=tmp_path)
    with pytest.raises(TrainError, match="epochs=2, but this run is in the middle of epoch 3, after 12 upd"):
        trainer.fit(datasets[0], epochs=2, batch_size=4)
    assert trainer.updates == 0
    assert make(checkpoint_dir=tmp_path).fit(datasets[0], epochs=3, batch_size=4).steps == 15


def test_fewer_epochs_after_a_stop_in_the_same_process_are_rejected(make, datasets):
    def on_step_end(trainer, step):
        if step == 7:
            trainer.stop("enough")

    trainer = make(hooks=[on_step_end])
    trainer.fit(datasets[0], epochs=3, batch_size=4)
    with pytest.raises(TrainError, match="in the middle of epoch 2"):
        trainer.fit(datasets[0], epochs=1, batch_size=4)


@pytest.mark.parametrize("as_loader", [False, True])
def test_a_loop_that_changes_its_data_resumes_in_the_middle_of_an_epoch(make, tmp_path, as_loader):
    x = torch.randn(20, 3)
    sources = [(x, x.sum(1, keepdim=True).tanh()), (x, x.prod(1, keepdim=True).tanh())]

    def run(folder, stop=0):
        data = [Loader(one, batch_size=4) for one in sources] if as_loader else sources
        size = None if as_loader else 4
        trainer = make(checkpoint_dir=tmp_path / folder, hooks=[stop_at(stop)])
        trainer.resume(data[0], size)
        while trainer.epochs < 4:
            for batch in trainer.epoch(data[trainer.epochs >= 2], size):
                trainer.step(batch)
        return trainer

    whole = run("whole")
    with pytest.raises(Stopped):
        run("run", 13)
    resumed = run("run")
    assert (resumed.updates, resumed.history, weights(resumed)) == (20, whole.history, weights(whole))


def test_trainers_of_different_runs_do_not_share_their_calls(make, datasets, tmp_path):
    make(checkpoint_dir=tmp_path / "a").fit(datasets[0], epochs=1, batch_size=4)
    other = make(checkpoint_dir=tmp_path / "b")
    assert len(other.fit(datasets[0], epochs=2, batch_size=4, resume=tmp_path / "a").history) == 2

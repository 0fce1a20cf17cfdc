"""A signal asks a run to stop, once."""

import multiprocessing
import os
import signal
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from flodl.monitor import Monitor
from flodl.train import Preempted
from flodl.train.faults.signals import EXIT_CODE, StopRequest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals")


def signal_and_exit(request, number):
    with request.listen():
        assert not request
        os.kill(os.getpid(), number)
        assert request
        request.exit()


def test_the_first_signal_is_remembered_and_the_exit_has_its_own_code():
    request = StopRequest()
    with pytest.raises(Preempted) as caught:
        signal_and_exit(request, signal.SIGTERM)
    assert caught.value.code == EXIT_CODE == 75
    assert caught.value.signal == "SIGTERM"
    assert not request


def test_the_same_signal_right_after_the_first_is_one_request():
    def signal_twice():
        with request.listen():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            request.exit()

    request = StopRequest()
    with pytest.raises(Preempted) as caught:
        signal_twice()
    assert caught.value.code == EXIT_CODE


TRAIN = """
import sys, torch
from torch import nn
from flodl import Trainer

def loss(model, x, y):
    return ((model(x) - y) ** 2).mean()

def on_step_end(step):
    if step == 2:
        print("training", flush=True)

data = torch.randn(64, 4), torch.randn(64, 1)
trainer = Trainer(nn.Linear(4, 1), loss, optimizer=lambda groups: torch.optim.SGD(groups, lr=1e-4),
                  checkpoint_dir="run", device="cpu", hooks=[on_step_end], log_every=None)
trainer.fit(data, epochs=10**6, batch_size=8)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("to_group", [False, True])
def test_a_signal_to_fdl_saves_the_run_that_it_started(tmp_path, number, to_group):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "fdl.yml").write_text("entry: python train.py\ncommands: {run: {training: {}}}\n")
    fdl = [sys.executable, "-c", "import sys; from flodl.cli import main; sys.exit(main())", "run"]
    with subprocess.Popen(
        fdl, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        while "training" not in running.stdout.readline():
            assert running.poll() is None
        (os.killpg if to_group else os.kill)(running.pid, number)
        running.stdout.read()
        assert running.wait(30) == EXIT_CODE
    assert list((tmp_path / "run" / "bundles").iterdir())


def test_an_unhandled_signal_goes_to_the_previous_handler():
    received = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    try:
        with StopRequest().listen():
            os.kill(os.getpid(), signal.SIGUSR1)
            assert not received
        assert received == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_at_a_prompt_ctrl_c_returns_to_the_prompt(monkeypatch):
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)
    with pytest.raises(KeyboardInterrupt):
        signal_and_exit(StopRequest(), signal.SIGINT)


def test_a_stop_request_of_an_earlier_run_is_forgotten():
    request = StopRequest()

    def signal_and_fail():
        with request.listen():
            os.kill(os.getpid(), signal.SIGUSR1)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        signal_and_fail()
    assert not request


def test_a_notebook_cell_can_be_interrupted_and_run_again(make, data, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)

    def on_step_end(step):
        if step == 2 and not interrupted:
            interrupted.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    interrupted = []
    trainer = make(checkpoint_dir=tmp_path, hooks=[on_step_end])
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(data, epochs=2, batch_size=8)
    assert trainer.updates == 2
    result = trainer.fit(data, epochs=2, batch_size=8)
    assert result.history == make().fit(data, epochs=2, batch_size=8).history


def fit(trainer, data, *, epochs=2, **settings):
    """Train to the end, or return the exit code."""
    try:
        return trainer.fit(data, epochs=epochs, **settings)
    except Preempted as left:
        return left.code


def test_a_signal_to_every_process_of_a_job_saves_the_run(make, data, tmp_path):
    def on_step_end(step):
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            for worker in multiprocessing.active_children():
                worker.kill()
                os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # dead, but not reaped

    def loader():
        return DataLoader(TensorDataset(*data), 4, num_workers=2)

    assert fit(make(checkpoint_dir=tmp_path, hooks=[on_step_end]), loader(), epochs=1) == EXIT_CODE
    assert signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL, "torch listens to its workers again"
    result = fit(make(checkpoint_dir=tmp_path), loader(), epochs=1)
    assert result.history == make().fit(loader(), epochs=1).history


class Dying:
    """Batches of which one never arrives, because a signal has ended the workers."""

    def __init__(self, data, at):
        self.batches = list(zip(*(part.split(4) for part in data)))
        self.at = at

    def __iter__(self):
        for number, batch in enumerate(self.batches):
            if number == self.at:
                os.kill(os.getpid(), signal.SIGTERM)
                raise RuntimeError("a worker is killed by signal: Terminated")
            yield batch


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_loader_that_fails_after_a_signal_does_not_prevent_the_save(make, data, tmp_path, at, accumulate):
    def trainer(**settings):
        return make(accumulate=accumulate, **settings)

    whole, again = trainer(), trainer(checkpoint_dir=tmp_path)
    expected = whole.fit(Dying(data, None), epochs=2)
    assert fit(trainer(checkpoint_dir=tmp_path), Dying(data, at)) == EXIT_CODE
    assert fit(again, Dying(data, None), resume="must").steps == expected.steps
    assert torch.equal(again.model[0].weight, whole.model[0].weight)


def test_a_loader_that_fails_without_a_signal_is_an_error(make, data, tmp_path):
    class Broken(Dying):
        def __iter__(self):
            yield self.batches[0]
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        make(checkpoint_dir=tmp_path).fit(Broken(data, None), epochs=1)


def test_an_evaluation_whose_loader_fails_after_a_signal_is_repeated(make, data, tmp_path):
    expected = make().fit(data, epochs=2, batch_size=4, eval_data=Dying(data, None))
    first, second = (make(checkpoint_dir=tmp_path) for _ in range(2))
    assert fit(first, data, batch_size=4, eval_data=Dying(data, 3)) == EXIT_CODE
    assert fit(second, data, batch_size=4, eval_data=Dying(data, None)).history == expected.history


@pytest.mark.parametrize("loops_on", [True, False])
def test_a_signal_in_a_window_that_the_loop_left_loses_no_update(make, data, tmp_path, loops_on):
    def left_in_a_window(trainer):
        with trainer.running(2):
            for number, batch in enumerate(trainer.epoch(data, 4)):
                trainer.step(batch)
                if number == 3:
                    break
            os.kill(os.getpid(), signal.SIGTERM)
            for batch in trainer.epoch(data, 4) if loops_on else ():
                trainer.step(batch)

    whole = make(accumulate=3)
    whole.fit(data, epochs=2, batch_size=4)
    first, second = (make(accumulate=3, checkpoint_dir=tmp_path) for _ in range(2))
    with pytest.raises(Preempted) as caught:
        left_in_a_window(first)
    assert caught.value.code == EXIT_CODE
    assert second.fit(data, epochs=2, batch_size=4, resume="must").steps == whole.updates
    assert torch.equal(second.model[0].weight, whole.model[0].weight)


def test_at_a_prompt_an_abandoned_window_starts_again(make, data, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)

    def interrupted(trainer):
        with trainer.running(2):
            trainer.step(next(iter(trainer.epoch(data, 4))))
            os.kill(os.getpid(), signal.SIGINT)

    whole, trainer = make(accumulate=2), make(accumulate=2, checkpoint_dir=tmp_path)
    whole.fit(data, epochs=2, batch_size=4)
    with pytest.raises(KeyboardInterrupt):
        interrupted(trainer)
    assert trainer.fit(data, epochs=2, batch_size=4).steps == whole.updates
    assert torch.equal(trainer.model[0].weight, whole.model[0].weight)


@pytest.mark.parametrize("save_every_steps", [2, None])
def test_a_run_that_could_not_be_saved_reports_it_and_names_the_bundle_it_resumes_from(
    make, data, tmp_path, save_every_steps
):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_step_end(step, trainer):
        if step == 3:
            trainer._run.directory.wait()
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
            os.kill(os.getpid(), signal.SIGTERM)

    trainer = make(checkpoint_dir=tmp_path, hooks=[on_step_end], save_every_steps=save_every_steps)
    try:
        left = fit(trainer, data, batch_size=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    where = "There is no bundle to resume from."
    if save_every_steps:
        where = "When started again, it resumes from its newest bundle, of step 2."
    # Python prints the text that a program exits with, and exits with code 1.
    assert left == f"SIGTERM; the run could not be saved at step 3. {where}"


class Signalling(Monitor):
    """Send a signal while the run is being set up."""

    def watch(self, thing, **settings):
        if isinstance(thing, torch.nn.Module):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def signalling():
    with Signalling(1) as monitor:
        yield monitor


class SlowToOpen:
    """Data that takes long to open: the signal comes in the first milliseconds of `fit`."""

    def __init__(self, data, number=signal.SIGTERM):
        self.data, self.number = data, number

    def __len__(self):
        number, self.number = self.number, None
        if number is not None:
            os.kill(os.getpid(), number)
        return len(self.data[0])

    def __getitem__(self, index):
        return self.data[0][index], self.data[1][index]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_in_the_first_milliseconds_of_fit_has_the_usual_exit_code(make, data, tmp_path, number):
    called = []

    def on_start():
        called.append("on_start")

    trainer = make(checkpoint_dir=tmp_path / "run", hooks=[on_start])
    with pytest.raises(Preempted) as caught:
        trainer.fit(SlowToOpen(data, number), epochs=1, batch_size=4)
    assert caught.value.code == EXIT_CODE
    name = signal.Signals(number).name
    assert str(caught.value) == f"{name}; nothing was trained yet, so nothing was saved; start it again"
    assert not called
    assert not (tmp_path / "run").exists()


def test_a_signal_during_a_second_setup_saves_the_progress_so_far(make, data, tmp_path, signalling):
    trainer = make(checkpoint_dir=tmp_path, save_every=None)
    trainer.fit(data, epochs=1, batch_size=4)
    trainer._run.reports.monitor, trainer._run.reports._is_model_shown = signalling, False
    with pytest.raises(Preempted, match="the run is saved"):
        trainer.fit(data, epochs=2, batch_size=4)
    assert make(checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=4, resume="must").steps == 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_on_end_exits_with_the_usual_code_after_the_run_is_complete(make, data, tmp_path, number):
    def on_end():
        os.kill(os.getpid(), number)

    with pytest.raises(Preempted, match="the run had already ended") as caught:
        make(hooks=[on_end], checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=10)
    assert caught.value.code == EXIT_CODE
    again = make(checkpoint_dir=tmp_path)
    assert len(again.fit(data, epochs=1, batch_size=10).history) == 1
    assert again.train_step.steps == 2

"""Saving and resuming: on the same or another number of ranks, within an epoch, from and to one device."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from flodl.checkpoint import latest_bundle, read_bundle
from flodl.core import TrainError
from flodl.distributed.ranks import Fault

pytestmark = pytest.mark.slow

# The loss does not depend on the model, so that its mean over an epoch shows that each sample counts once.
SAMPLES = torch.arange(120.0).reshape(120, 1)
MEAN = 59.5


def mean_of(model, x):
    return (0.0 * model(x)).mean() + x.mean()


def stop_after(trainer, commits):
    """Stop within an epoch, after a number of commits."""
    left = [commits]

    def on_record(record):
        if record["kind"] == "commit" and record["batches"]:
            left[0] -= 1
            if left[0] == 0:
                trainer.stop("for the test")
                time.sleep(0.2)  # the watching thread asks the supervisor to stop meanwhile

    return on_record


@pytest.fixture
def run(make, supervision, tmp_path):
    def run(devices, *, epochs=2, stop=None, **settings):
        model = torch.nn.Linear(1, 1)
        options = {"device": "cpu"} if devices == 1 else {"devices": ["cpu"] * devices}
        trainer = make(model, mean_of, checkpoint_dir=tmp_path / "run", **options, **settings)
        if devices > 1:
            supervision.use(on_record=stop_after(trainer, stop) if stop else None)
        if devices == 1 and stop:
            with trainer.running(epochs):
                loader = trainer.loader(SAMPLES, 2)
                trainer.resume(loader)
                for step, batch in enumerate(trainer.epoch(loader), 1):
                    trainer.step(batch)
                    if step == stop:
                        trainer.stop("for the test")
            return trainer.result()
        return trainer.fit(SAMPLES, epochs=epochs, batch_size=2)

    return run


@pytest.mark.parametrize(("before", "after"), [(2, 2), (3, 2), (2, 3), (1, 2), (2, 1)])
def test_a_run_that_stopped_within_an_epoch_trains_the_rest_of_it(run, supervision, before, after):
    first = run(before, stop=1 if before > 1 else 7)
    assert first.status == "stopped"
    assert 0 < first.steps < 60
    result = run(after)
    assert result.status == "finished"
    assert result.steps == 120
    assert [row["loss"] for row in result.history] == [pytest.approx(MEAN)] * 2
    if before > 1 and after > 1:
        supervision.check_coverage(120, range(2))


def test_saves_within_an_epoch_and_at_its_end_are_ordinary_bundles(make, supervision, tmp_path):
    saved = []

    class Saves:
        def on_save(self, step, path):
            saved.append((step, sorted(read_bundle(path))))

    trainer = make(
        torch.nn.Linear(1, 1), mean_of, checkpoint_dir=tmp_path, save_every_steps=10, hooks=[Saves()]
    )
    trainer.fit(SAMPLES, epochs=2, batch_size=4)
    steps = [step for step, _ in saved]
    assert steps[-1] == 60
    assert 30 in steps
    assert len(steps) > 2
    assert all("ranks" in parts and "optimizer" in parts for _, parts in saved)
    bundle, _ = latest_bundle(tmp_path / "bundles")
    assert read_bundle(bundle)["ranks"]["committed"] == [[0, 120]]


def test_momentum_of_the_optimizer_and_of_windows_is_restored(make, data, supervision, tmp_path):
    settings = {
        "optimizer": lambda groups: torch.optim.SGD(groups, lr=0.02, momentum=0.9),
        "outer": "slow_momentum",
        "checkpoint_dir": tmp_path,
    }
    make(**settings).fit(data, epochs=1, batch_size=4)
    trainer = make(**settings)
    result = trainer.fit(data, epochs=4, batch_size=4)
    assert [row["epoch"] for row in result.history] == [1, 2, 3, 4]
    assert result.metrics["loss"] < result.history[0]["loss"]
    bundle, _ = latest_bundle(tmp_path / "bundles")
    parts = read_bundle(bundle)
    assert parts["ranks"]["outer"]["momentum"].shape == (5,)
    buffers = [state["momentum_buffer"] for state in trainer.optimizer.state.values()]
    assert all(buffer.abs().sum() > 0 for buffer in buffers)


def test_one_device_refuses_parts_that_are_not_one_after_the_other(run, supervision, tmp_path, make):
    # A killed rank leaves a hole, and the run is stopped before others have trained it.
    trainer = make(torch.nn.Linear(1, 1), mean_of, checkpoint_dir=tmp_path / "run", devices=["cpu"] * 3)
    supervision.use(faults=[Fault(0, "arrive", 1)], on_record=stop_after(trainer, 1))
    trainer.fit(SAMPLES, epochs=2, batch_size=2)
    committed = trainer.train_step.updates
    assert committed
    alone = make(torch.nn.Linear(1, 1), mean_of, checkpoint_dir=tmp_path / "run", device="cpu")
    with pytest.raises(TrainError, match="parts of an epoch that are not one after the other"):
        alone.fit(SAMPLES, epochs=2, batch_size=2)
    assert alone.updates == 0
    again = make(torch.nn.Linear(1, 1), mean_of, checkpoint_dir=tmp_path / "run")
    supervision.use()
    result = again.fit(SAMPLES, epochs=2, batch_size=2)
    assert result.steps == 120
    supervision.check_coverage(120, range(2))
    assert result.metrics["loss"] == pytest.approx(MEAN)


def test_other_settings_of_several_devices_are_reported(make, data, tmp_path, capsys):
    def shown(epochs, **settings):
        make(checkpoint_dir=tmp_path, monitor=True, **settings).fit(data, epochs=epochs, batch_size=4)
        return "".join(capsys.readouterr())

    shown(1, outer="slow_momentum")
    text = shown(2, outer="slow_momentum")
    assert "is now" not in text
    text = shown(3, devices=["cpu"] * 3, policy="async", outer="nesterov", wire="bf16", backend="cpu")
    for name, now, was in (
        ("policy", "'async'", "'cadence'"),
        ("wire", "'bf16'", "'fp32'"),
        ("backend", "'cpu'", "'auto'"),
        ("outer", "'Nesterov(lr=0.7, momentum=0.9)'", "'SlowMomentum(momentum=0.5, lr=1.0)'"),
    ):
        assert f"{name} is now {now}, was {was}" in text
    assert "devices is now" in text
    assert "trains on one device now, before on 3 devices (policy 'async')" in shown(4, device="cpu")
    assert "trains on 2 devices (policy 'cadence') now, before on one device" in shown(5)


def test_another_batch_size_within_an_epoch_is_refused(run, make, tmp_path):
    run(2, stop=1)
    trainer = make(torch.nn.Linear(1, 1), mean_of, checkpoint_dir=tmp_path / "run")
    with pytest.raises(TrainError, match="not a multiple of the 7 samples of an update"):
        trainer.fit(SAMPLES, epochs=2, batch_size=7)


SCRIPT = """
import sys, time
import torch
from flodl import Trainer

scale = 1.0

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x):
        return self.layer(x)

def slowly(model, x):
    time.sleep(0.01)
    return (0.0 * model(x)).mean() + scale * x.mean()

class Say:
    def on_epoch_end(self, epoch):
        print("epoch", epoch, flush=True)

trainer = Trainer(
    Model(), slowly, optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1), devices=2, monitor=False,
    checkpoint_dir=sys.argv[1], hooks=[Say()], tier="eager",
)
result = trainer.fit(torch.arange(120.0).reshape(120, 1), epochs=int(sys.argv[2]), batch_size=4)
print("loss", [row["loss"] for row in result.history], result.steps)
"""


def test_a_script_without_main_guard_is_saved_by_sigterm_and_continues(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def start(epochs):
        command = [sys.executable, str(script), str(tmp_path / "run"), str(epochs)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    process = start(200)
    assert process.stdout.readline() == "epoch 0\n"
    os.kill(process.pid, signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    done = 1 + output.count("epoch")
    output, errors = start(done + 1).communicate(timeout=120)
    assert output.splitlines()[-1] == f"loss {[59.5] * (done + 1)} {30 * (done + 1)}", errors

"""A disk that fills up, or a folder that becomes read-only, during training."""

import contextlib
import os
import signal
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from flodl import Monitor, Trainer
from flodl.checkpoint import latest_bundle
from flodl.core import TrainError, WriteError
from flodl.train import Preempted

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs limits of another system")


@contextlib.contextmanager
def short_files():
    """No file may grow past a megabyte; the journal does not, a bundle would."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def closed_folder(folder):
    """A read-only folder; root drops its privileges meanwhile."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        undo = lambda: os.seteuid(0)  # noqa: E731
    else:
        os.chmod(folder, 0o555)
        undo = lambda: os.chmod(folder, 0o755)  # noqa: E731
    try:
        yield
    finally:
        undo()


class Fault:
    """Lets the disk fail from the second epoch on, once the bundle of the first is safe."""

    def __init__(self, kind, folder):
        self.make = short_files if kind == "full" else lambda: closed_folder(folder / "bundles")
        self.stack = contextlib.ExitStack()

    def on_epoch_start(self, trainer, epoch):
        if epoch == 1:
            trainer.save()
            self.stack.enter_context(self.make())


@pytest.fixture
def run():
    # Not under pytest's folder, which only its owner may enter.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder) / "run"


def trainer_in(folder, *hooks, **settings):
    torch.manual_seed(0)
    return Trainer(
        nn.Sequential(nn.Linear(2, 200_000), nn.Linear(200_000, 1)),
        lambda model, x, y: nn.functional.mse_loss(model(x), y),
        optimizer=lambda groups: torch.optim.SGD(groups, lr=1e-6),
        tier="eager",
        device="cpu",
        checkpoint_dir=folder,
        hooks=hooks,
        **settings,
    )


DATA = torch.ones(8, 2), torch.zeros(8, 1)
FAULTS = pytest.mark.parametrize(
    ("kind", "reason"), [("full", "File too large"), ("closed", "Permission denied")]
)


@pytest.fixture
def monitor():
    """A monitor that keeps the alerts of a run, even if its journal cannot be written."""
    alerts = []

    def note(event):
        if event.kind == "alert":
            alerts.append(event.data["message"])

    with Monitor(console=False, views=[note]) as monitor:
        monitor.alerts = alerts
        yield monitor


@FAULTS
def test_training_continues_with_one_alert_and_earlier_saves_remain(run, monitor, kind, reason):
    fault = Fault(kind, run)
    with fault.stack:
        result = trainer_in(run, fault, monitor=monitor).fit(DATA, epochs=4, batch_size=4)
    assert (result.status, len(result.history)) == ("finished", 4)
    (alert,) = monitor.alerts
    assert f"cannot save step 4 in {str(run / 'bundles')!r}: {reason}. Earlier bundles are unchanged" in alert
    assert alert.endswith("Training continues.")
    assert latest_bundle(run / "bundles").bundle.step == 2
    # With free space again, the run resumes from its last save.
    again = trainer_in(run, monitor=False).fit(DATA, epochs=4, batch_size=4)
    assert again.history == result.history


@FAULTS
def test_training_stops_if_requested(run, kind, reason):
    fault = Fault(kind, run)
    with fault.stack, pytest.raises(WriteError, match=reason):
        trainer_in(run, fault, when_disk_fails="stop", monitor=False).fit(DATA, epochs=4, batch_size=4)
    assert latest_bundle(run / "bundles").bundle.step == 2


def test_a_signal_when_nothing_can_be_saved_causes_one_alert(run, monitor):
    fault = Fault("full", run)

    def on_step_end(step):
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with fault.stack, pytest.raises(Preempted):
        trainer_in(run, fault, on_step_end, monitor=monitor).fit(DATA, epochs=4, batch_size=4)
    (alert,) = monitor.alerts
    assert alert.endswith("The run ends with its last successful save.")
    assert latest_bundle(run / "bundles").bundle.step == 2


def test_a_folder_that_is_not_writable_raises_before_training(run):
    run.mkdir()
    with (
        closed_folder(run),
        pytest.raises(TrainError, match=r"cannot write the run directory .*Permission denied"),
    ):
        trainer_in(run).fit(DATA, epochs=1, batch_size=4)


def test_without_a_monitor_the_failure_is_in_the_log(run, capsys):
    fault = Fault("full", run)
    with fault.stack:
        trainer_in(run, fault, monitor=False).fit(DATA, epochs=3, batch_size=4)
    assert capsys.readouterr().err.count("cannot save step") == 1

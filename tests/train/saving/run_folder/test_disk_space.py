"""Missing disk space is reported early and once, and does not end a run."""

import contextlib
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from flodl import Monitor
from flodl.checkpoint import BackgroundWriter, every, last, list_bundles
from flodl.train.saving.run_folder.disk_space import expected_optimizer_bytes, num_bytes_of, space_warning


@contextlib.contextmanager
def small_disk(folder, size):
    """A file system of a few bytes."""
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], capture_output=True)
    if made.returncode != 0:
        pytest.skip("only root may mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def monitor():
    alerts = []

    def note(event):
        if event.kind == "alert":
            alerts.append((event.data["level"], event.data["message"]))

    with Monitor(console=False, views=[note]) as monitor:
        monitor.alerts = alerts
        yield monitor


def wide():
    """A model of 400 kB."""
    return nn.Sequential(nn.Linear(3, 20_000), nn.Linear(20_000, 1))


class Vast(nn.Module):
    """A model that claims a petabyte but allocates nothing."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 1)
        self.register_buffer("vast", torch.zeros(1).expand(10**15))

    def forward(self, x):
        return self.line(x)


def test_a_run_that_is_too_large_for_the_disk_warns_at_the_start_and_trains(make, data, tmp_path, monitor):
    at_start = []

    def on_step_end(step):
        if step == 1:
            at_start.extend(monitor.alerts)

    trainer = make(Vast(), checkpoint_dir=tmp_path, monitor=monitor, save_every=None, hooks=[on_step_end])
    assert trainer.fit(data, epochs=2, batch_size=8).status == "finished"
    ((level, message),) = at_start
    assert level == "warning"
    assert message.startswith(f"{str(tmp_path)!r} has ")
    assert "a save takes about 3725290.3 GB. Saving will fail when the disk is full." in message
    assert monitor.alerts == at_start


@pytest.mark.parametrize(
    ("size", "settings", "warns"),
    [
        ("1m", {}, True),  # three of 0.4 MB: two to keep, and the one being written
        ("1m", {"keep": last(1)}, False),
        ("300k", {"keep": last(1)}, True),
        ("1m", {"keep": every(1)}, False),  # the number of bundles that it keeps is unknown
        ("2m", {}, False),
    ],
)
def test_kept_bundles_and_the_one_being_saved_must_fit(make, data, tmp_path, monitor, size, settings, warns):
    at_the_start = []

    def on_step_end(step):
        if step == 1:
            at_the_start.extend(monitor.alerts)

    plain = {"optimizer": lambda groups: torch.optim.SGD(groups, lr=1e-6), "hooks": [on_step_end]}
    with small_disk(tmp_path / "disk", size):
        trainer = make(wide(), checkpoint_dir=tmp_path / "disk" / "run", monitor=monitor, **plain, **settings)
        assert trainer.fit(data, epochs=4, batch_size=20).status == "finished"
        assert [level for level, _ in at_the_start] == ["warning"] * warns
        assert [level for level, _ in monitor.alerts].count("warning") <= 1
        if size != "300k":
            assert list_bundles(tmp_path / "disk" / "run" / "bundles")


def test_a_disk_that_fills_up_during_the_run_is_reported_before_the_save(make, data, tmp_path, monitor):
    def on_epoch_start(epoch):
        if epoch == 1:
            (tmp_path / "disk" / "others").write_bytes(bytes(1_700_000))

    plain = {"optimizer": lambda groups: torch.optim.SGD(groups, lr=1e-6), "hooks": [on_epoch_start]}
    with small_disk(tmp_path / "disk", "2400k"):
        trainer = make(wide(), checkpoint_dir=tmp_path / "disk" / "run", monitor=monitor, **plain)
        assert trainer.fit(data, epochs=4, batch_size=20).status == "finished"
    # The writer's thread reports its own error, so either may come first.
    error, warning = sorted(monitor.alerts)
    assert (error[0], warning[0]) == ("error", "warning")
    assert "free, but a save takes about" in warning[1]
    assert "No space left on device" in error[1]


def test_the_size_of_a_save_is_known_from_existing_bundles(make, data, tmp_path, monitor):
    with BackgroundWriter(tmp_path / "bundles") as writer:
        writer.save(0, {"data": {}})
    make(Vast(), checkpoint_dir=tmp_path, monitor=monitor, save_every=None)._run.directory.check_space(
        10**18, num_saves=None
    )
    assert monitor.alerts == []


def test_tied_tensors_count_once_and_moments_count_before_they_exist():
    weight = nn.Parameter(torch.zeros(100))
    assert num_bytes_of([{"a": weight, "b": weight}, [torch.zeros(2, dtype=torch.int8)]]) == 402
    adam = torch.optim.Adam([weight])
    assert expected_optimizer_bytes(adam) == 800
    weight.sum().backward()
    adam.step()
    assert expected_optimizer_bytes(adam) == 0
    assert expected_optimizer_bytes(torch.optim.SGD([weight], lr=0.1, momentum=0.9)) == 400


def test_a_folder_with_unknown_free_space_causes_no_warning():
    assert space_warning(Path("/nowhere"), 10**18, at_once=3) == ""

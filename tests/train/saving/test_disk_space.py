"""A disk that cannot hold what a run will save is told of early, once, and ends nothing."""

import contextlib
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from flodl import Monitor
from flodl.checkpoint import BackgroundWriter, every, last, list_bundles
from flodl.train.saving.disk_space import expected_optimizer_bytes, num_bytes_of, space_warning


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
def told():
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
    """A model that claims a petabyte, and takes nothing."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 1)
        self.register_buffer("vast", torch.zeros(1).expand(10**15))

    def forward(self, x):
        return self.line(x)


def test_a_run_that_no_disk_could_hold_is_told_at_its_start_and_trains(make, data, tmp_path, told):
    heard = []

    def on_step_end(step):
        if step == 1:
            heard.extend(told.alerts)

    trainer = make(Vast(), checkpoint_dir=tmp_path, monitor=told, save_every=None, hooks=[on_step_end])
    assert trainer.fit(data, epochs=2, batch_size=8).status == "finished"
    ((level, message),) = heard
    assert level == "warning"
    assert message.startswith(f"{str(tmp_path)!r} has ")
    assert "a save takes about 3725290.3 GB. Saving will fail when the disk is full." in message
    assert told.alerts == heard


@pytest.mark.parametrize(
    ("size", "settings", "warns"),
    [
        ("1m", {}, True),  # three of 0.4 MB: two to keep, and the one being written
        ("1m", {"keep": last(1)}, False),
        ("300k", {"keep": last(1)}, True),
        ("1m", {"keep": every(1)}, False),  # how many that keeps, nobody knows
        ("2m", {}, False),
    ],
)
def test_what_is_kept_and_what_is_written_have_to_fit(make, data, tmp_path, told, size, settings, warns):
    at_the_start = []

    def on_step_end(step):
        if step == 1:
            at_the_start.extend(told.alerts)

    plain = {"optimizer": lambda groups: torch.optim.SGD(groups, lr=1e-6), "hooks": [on_step_end]}
    with small_disk(tmp_path / "disk", size):
        trainer = make(wide(), checkpoint_dir=tmp_path / "disk" / "run", monitor=told, **plain, **settings)
        assert trainer.fit(data, epochs=4, batch_size=20).status == "finished"
        assert [level for level, _ in at_the_start] == ["warning"] * warns
        assert [level for level, _ in told.alerts].count("warning") <= 1
        if size != "300k":
            assert list_bundles(tmp_path / "disk" / "run" / "bundles")


def test_a_disk_that_fills_during_the_run_is_told_before_the_save(make, data, tmp_path, told):
    def on_epoch_start(epoch):
        if epoch == 1:
            (tmp_path / "disk" / "others").write_bytes(bytes(1_700_000))

    plain = {"optimizer": lambda groups: torch.optim.SGD(groups, lr=1e-6), "hooks": [on_epoch_start]}
    with small_disk(tmp_path / "disk", "2400k"):
        trainer = make(wide(), checkpoint_dir=tmp_path / "disk" / "run", monitor=told, **plain)
        assert trainer.fit(data, epochs=4, batch_size=20).status == "finished"
    # The writer's thread tells of its error by itself, so either may come first.
    error, warning = sorted(told.alerts)
    assert (error[0], warning[0]) == ("error", "warning")
    assert "free, but a save takes about" in warning[1]
    assert "No space left on device" in error[1]


def test_bundles_that_are_there_say_how_large_one_is(make, data, tmp_path, told):
    with BackgroundWriter(tmp_path / "bundles") as writer:
        writer.save(0, {"data": {}})
    make(Vast(), checkpoint_dir=tmp_path, monitor=told, save_every=None)._run.directory.check_space(
        10**18, num_saves=None
    )
    assert told.alerts == []


def test_tied_tensors_count_once_and_moments_before_they_are_there():
    weight = nn.Parameter(torch.zeros(100))
    assert num_bytes_of([{"a": weight, "b": weight}, [torch.zeros(2, dtype=torch.int8)]]) == 402
    adam = torch.optim.Adam([weight])
    assert expected_optimizer_bytes(adam) == 800
    weight.sum().backward()
    adam.step()
    assert expected_optimizer_bytes(adam) == 0
    assert expected_optimizer_bytes(torch.optim.SGD([weight], lr=0.1, momentum=0.9)) == 400


def test_a_folder_that_cannot_be_asked_has_room():
    assert space_warning(Path("/nowhere"), 10**18, at_once=3) == ""

"""A save that is killed at any file system call leaves a complete bundle to start from."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from flodl.checkpoint import save_bundle

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork and signals")
SCRIPT = Path(__file__).with_name("killed_saves.py")


FEWEST_CALLS = {"first": 20, "second": 25, "same_step": 30, "background": 30, "file": 6}


@pytest.fixture
def quick_folder(tmp_path):
    """A folder in memory if available: processes die here, not machines."""
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=in_memory) as folder:
        yield folder


def test_the_next_start_always_finds_a_complete_bundle(quick_folder):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), quick_folder, *FEWEST_CALLS],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"(\w+): (\d+) calls, found \{(.*)\}", done.stdout)
    assert [scenario for scenario, _, _ in found] == list(FEWEST_CALLS)
    for scenario, calls, values in found:
        assert int(calls) >= FEWEST_CALLS[scenario], f"{scenario}: fewer calls were counted than a save makes"
        assert values.count(":") == 2, (
            f"{scenario}: kills fell only before or only after the save was visible"
        )


def test_contents_are_on_disk_before_the_rename(tmp_path, monkeypatch):
    """Each file is flushed after its last write, the folder before the rename, the root after it."""
    calls: list[tuple[str, str]] = []
    names: dict[int, str] = {}

    def noted(name, call):
        def noting(*args, **options):
            result = call(*args, **options)
            if name == "open":
                names[result] = os.path.basename(args[0])
            place = names.get(args[0], "?") if isinstance(args[0], int) else os.path.basename(args[0])
            calls.append((name, place))
            return result

        return noting

    for name in ("open", "write", "fsync", "rename"):
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    save_bundle(tmp_path, 1, {"model": {"w": torch.ones(3)}, "data": {"position": 1}})
    monkeypatch.undo()
    order = [call for call in calls if call[0] != "open"]
    renamed = next(k for k, (name, _) in enumerate(order) if name == "rename")
    temporary = order[renamed][1]
    for file in ("model.fdl", "data.json", "manifest.json"):
        last_write = max(k for k, call in enumerate(order) if call == ("write", file))
        assert last_write < order.index(("fsync", file)) < renamed
    first_of_manifest = order.index(("write", "manifest.json"))
    assert all(order.index(("fsync", file)) < first_of_manifest for file in ("model.fdl", "data.json"))
    assert order.index(("fsync", temporary)) == renamed - 1
    assert order[renamed + 1 :] == [("fsync", tmp_path.name)]

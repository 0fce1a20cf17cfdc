"""A run that is killed around a save has every epoch of its history once in every record."""

import json
import os
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork and signals")
HERE = Path(__file__).parent
NAMES = [
    "before the first save",
    "in the end of the second epoch",
    "after a save within the end of the second epoch",
    "after a save within the end of the last epoch",
    "after the first save",
    "after the second save",
    "after the last save",
    "in the next epoch",
    "at the end",
    "SIGTERM in the end of the last epoch",
    "after the second save, with a monitor",
    "after a save within the second epoch, with a monitor",
    "after the last save, with a monitor",
]


@pytest.fixture(scope="module")
def cases(warm_python):
    """Every case of the script: exit codes, and the epochs in each record of the run."""
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=in_memory) as folder:
        done = warm_python.run(HERE / "killed_records.py", folder, cwd=HERE)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return {case.pop("name"): case for case in map(json.loads, lines)}


@pytest.mark.parametrize("name", NAMES)
def test_every_record_has_every_epoch_of_the_history_once(cases, name):
    case = cases[name]
    assert case["codes"] == [75 if "SIGTERM" in name else -9, 0]
    history = case["history"]
    assert [epoch for epoch, _ in history] == [1, 2, 3]
    for record in ("journal", "csv", *(["sink"] if "monitor" in name else [])):
        assert case[record] == [pytest.approx(row) for row in history], record
    assert case["log"] == ["1/3", "2/3", "3/3"]


@pytest.mark.parametrize("name", NAMES)
def test_the_best_epoch_and_the_state_are_those_of_the_completed_run(cases, name):
    case = cases[name]
    best, epoch = min((loss, epoch) for epoch, loss in case["history"])
    assert (case["best"], case["compared"], case["state"]) == (epoch, pytest.approx(best), "finished")


def test_every_case_of_the_script_is_checked(cases):
    assert list(cases) == NAMES

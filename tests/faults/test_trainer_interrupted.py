"""A run that is killed or stopped at any moment has the same outcome as an undisturbed one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork and signals")
HERE = Path(__file__).parent
NAMES = ["killed", "stopped", "stopped twice", "with workers", "with accumulation", "a graph"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def cases(warm_python):
    """Every case of the script: exit codes, the outcome, and the expected outcome."""
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=in_memory) as folder:
        done = warm_python.run(HERE / "interrupted_runs.py", folder, cwd=HERE)
    assert done.returncode == 0, done.stderr
    # Trainers print notes as well.
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return {case.pop("name"): case for case in map(json.loads, lines)}


@pytest.mark.parametrize("name", NAMES)
def test_every_process_exits_with_the_expected_code(cases, name):
    assert cases[name]["codes"] == cases[name]["expected"]


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_is_that_of_the_undisturbed_run(cases, name):
    case = cases[name]
    assert len(case["outcome"]["losses"]) == (40 if name == "with accumulation" else 104)
    # A step that ran twice, before and after a kill, had the same loss both times.
    assert case["outcome"]["losses"] == case["undisturbed"]["losses"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", ["weights", "average", "history", "updates", "hook_steps", "metrics", "own"])
def test_the_outcome_is_that_of_the_undisturbed_run(cases, name, what):
    assert cases[name]["outcome"][what] == cases[name]["undisturbed"][what]


def test_every_case_of_the_script_is_checked(cases):
    assert list(cases) == NAMES


@pytest.fixture
def run_script(warm_python):
    return lambda *arguments: warm_python.run(HERE / "signalled_run.py", *arguments, cwd=HERE)


def numbers_in(printed):
    words = printed.splitlines()[-1].split()
    return int(words[1]), float(words[3]), words[5]


def test_a_script_stopped_by_a_signal_exits_with_75_and_resumes(run_script, tmp_path):
    undisturbed = run_script(tmp_path / "undisturbed", "eager")
    script = [sys.executable, str(HERE / "signalled_run.py"), str(tmp_path / "run"), "eager", "wait"]
    with subprocess.Popen(script, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        while process.stdout.readline().strip() != "waiting":
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 75
    journal = (tmp_path / "run" / "journal.jsonl").read_text()
    assert "SIGTERM; the run is saved and continues when it is started again" in journal
    resumed = run_script(tmp_path / "run", "eager")
    assert resumed.returncode == 0, resumed.stderr
    assert numbers_in(resumed.stdout) == numbers_in(undisturbed.stdout)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler needs a C++ compiler")
def test_a_signal_during_a_compilation_is_handled_after_the_update(run_script, tmp_path):
    eager = run_script(tmp_path / "eager", "eager")
    stopped = run_script(tmp_path / "run", "compiled", "compile")
    assert stopped.returncode == 75, stopped.stderr
    # Before it is promoted, a candidate leaves no trace: the bundle is that of an eager run, bit for bit.
    resumed = run_script(tmp_path / "run", "eager")
    assert resumed.returncode == 0, resumed.stderr
    assert numbers_in(resumed.stdout) == numbers_in(eager.stdout)

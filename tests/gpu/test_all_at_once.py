"""The script that runs the tests for CUDA devices in parallel, with a folder of small tests."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "all_at_once.py"
PASSES = "import pytest\n@pytest.mark.parametrize('n', ['a b', 'c'])\ndef test_passes(n): pass\n"
SKIPS = "import pytest\n@pytest.mark.skip(reason='no CUDA device')\ndef test_skips(): pass\n"
FAILS = "def test_fails(): assert 1 == 2, 'one is not two'\n"
SLEEPS = "import time\ndef test_sleeps(): time.sleep(60)\ndef test_after_it(): pass\n"
# Ignores the interrupt, as a compiler that runs no Python does.
HANGS = "import signal, time\ndef test_hangs():\n    signal.signal(2, signal.SIG_IGN)\n    time.sleep(60)\n"


@pytest.fixture
def run(tmp_path):
    """Return a function that runs the script on test files; it returns the exit code and the output."""

    def run_script(*words, **files):
        folder = tmp_path / "stubs"
        folder.mkdir()
        for name, text in files.items():
            (folder / f"test_{name}.py").write_text(text)
        command = [sys.executable, SCRIPT, "--folder", folder, "--logs", tmp_path / "logs", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    return run_script


def test_passed_and_skipped_tests_are_no_failure(run):
    code, output = run("--processes", "2", "--seconds", "100", passes=PASSES, skips=SKIPS)
    assert code == 0, output
    assert "did not run" not in output
    assert "3 tests in" in output


def test_a_failure_is_named_with_its_message(run):
    code, output = run(passes=PASSES, fails=FAILS)
    assert code == 1
    (line,) = (line for line in output.splitlines() if line.startswith("FAILED"))
    assert line.endswith("one is not two")
    assert output.count("::test_fails") == 1


@pytest.mark.slow
def test_at_the_deadline_the_tests_that_have_not_run_are_listed(run):
    started_s = time.monotonic()
    code, output = run("--processes", "1", "--seconds", "16", a=PASSES, sleeps=SLEEPS, z=SKIPS)
    assert time.monotonic() - started_s < 60
    assert code == 0, output
    assert "3 of 5 tests did not run to their end:" in output
    assert "test_sleeps.py: all 2\n" in output
    assert "test_z.py: all 1\n" in output
    assert "interrupted" in output


@pytest.mark.slow
def test_a_failure_before_the_deadline_decides_the_exit_code(run):
    code, output = run("--processes", "1", "--seconds", "16", a=FAILS + PASSES, b=SLEEPS + PASSES)
    assert code == 1
    assert output.count("FAILED") == 1
    assert "test_b.py: all 4" in output


@pytest.mark.slow
def test_a_process_that_ignores_the_interrupt_is_killed_and_its_failures_are_known(run):
    code, output = run("--processes", "1", "--seconds", "16", a=FAILS, b=HANGS)
    assert code == 1
    assert "FAILED" in output
    assert "test_b.py: all 1" in output
    assert "exit code -9, interrupted" in output


def test_a_process_that_crashes_is_a_failure(run):
    code, output = run("--processes", "1", a=PASSES, b="import os\ndef test_crashes(): os._exit(3)\n")
    assert code == 1
    assert "1 of 3 tests did not run to their end:" in output
    assert "exit code 3)" in output


def test_no_tests_are_a_failure(run):
    assert run(a="")[0] == 1

"""Running a program with a limit on its time and its output."""

import subprocess
import time

import pytest

from flodl.cli import capture as capture_module
from flodl.cli.capture import OutputTooLongError, capture


def run(line, timeout_s=20.0):
    return capture(["sh", "-c", line], cwd=None, timeout_s=timeout_s)


def test_the_output_and_the_exit_code_are_returned():
    assert run("echo out; echo err >&2; exit 3") == (3, "out\n", "err\n")
    assert run("printf '\\377'").stdout == "\ufffd"
    assert run("cat").stdout == ""  # there is no input


def test_a_program_that_prints_too_much_is_stopped(monkeypatch):
    monkeypatch.setattr(capture_module, "MAX_OUTPUT_BYTES", 10_000)
    with pytest.raises(OutputTooLongError):
        run("yes")
    with pytest.raises(OutputTooLongError):
        run("yes >&2")


@pytest.mark.slow
def test_a_program_that_takes_too_long_is_killed_with_its_children(tmp_path):
    started_s = time.monotonic()
    line = f"(sleep 1; touch {tmp_path}/late) & wait"
    with pytest.raises(subprocess.TimeoutExpired):
        run(line, timeout_s=0.1)
    assert time.monotonic() - started_s < 0.9
    time.sleep(1.2 - (time.monotonic() - started_s))
    assert not (tmp_path / "late").exists()

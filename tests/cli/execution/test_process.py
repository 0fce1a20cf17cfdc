"""Child processes: signals and exit codes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from flodl.cli import main


def test_a_child_killed_by_a_signal_returns_1_and_the_signal_is_named(project, capfd):
    project(
        {
            "fdl.yml": "commands: {die: {run: 'kill -9 $$'}, crash: {run: sh c.sh; exit $?}}",
            "c.sh": "kill -SEGV $$",
        }
    )
    assert main(["die"]) == 1
    assert "killed by SIGKILL (signal 9). The system does this when memory runs out" in capfd.readouterr().err
    assert main(["crash"]) == 139
    assert "killed by SIGSEGV (signal 11)." in capfd.readouterr().err


@pytest.fixture
def waiting(project):
    """Start an fdl whose child handles a signal by printing a line and exiting with 5."""

    def start(name):
        script = f"trap 'sleep 0.1; echo saved; exit 5' {name}; echo ready; while :; do sleep 0.05; done"
        project({"fdl.yml": "commands: {wait: {run: exec sh wait.sh}}", "wait.sh": script})
        fdl = [sys.executable, "-c", "import sys; from flodl.cli import main; sys.exit(main())", "wait"]
        return subprocess.Popen(fdl, stdout=subprocess.PIPE, text=True, start_new_session=True)

    return start


def test_sigterm_is_forwarded_and_the_exit_code_is_returned(waiting):
    with waiting("TERM") as running:
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGTERM)
        assert running.stdout.readline() == "saved\n"
        assert running.wait(20) == 5


def test_the_child_handles_an_interrupt_itself(waiting):
    with waiting("INT") as running:
        assert running.stdout.readline() == "ready\n"
        os.killpg(running.pid, signal.SIGINT)
        assert running.stdout.readline() == "saved\n"
        assert running.wait(20) == 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_a_signal_right_after_the_start_does_not_orphan_the_child(project, name):
    script = f"trap 'exit 5' INT TERM; kill -{name} $PPID; sleep 0.1; exit 5"
    project({"fdl.yml": "commands: {wait: {run: exec sh wait.sh}}", "wait.sh": script})
    fdl = [sys.executable, "-c", "import sys; from flodl.cli import main; sys.exit(main())", "wait"]
    assert [subprocess.run(fdl, timeout=30).returncode for _ in range(5)] == [5] * 5


def test_an_interrupt_for_fdl_alone_reaches_the_child(waiting):
    with waiting("INT") as running:
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGINT)
        assert running.stdout.readline() == "saved\n"
        assert running.wait(20) == 5


COUNTING = """
import signal, sys, time

def count(number, frame):
    global num
    num += 1

num = 0
signal.signal(signal.SIGINT, count)
signal.signal(signal.SIGTERM, count)
print("ready", flush=True)
before = 0
for line in sys.stdin:
    end = time.monotonic() + 20
    while num == before and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(1)
    print(num, flush=True)
    before = num
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("to_group", [True, False])
@pytest.mark.parametrize("words", [("launch", "--ranks", "1", "count.py"), ("direct",)])
def test_each_signal_reaches_the_program_once(project, words, to_group, number):
    project({"fdl.yml": "commands: {direct: {run: exec python count.py}}", "count.py": COUNTING})
    fdl = [sys.executable, "-c", "import sys; from flodl.cli import main; sys.exit(main())", *words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(fdl, **pipes, start_new_session=True) as running:
        assert running.stdout.readline() == "ready\n"
        for expected in ("1\n", "2\n"):
            time.sleep(0.3)
            os.killpg(running.pid, number) if to_group else running.send_signal(number)
            running.stdin.write("\n")
            running.stdin.flush()
            assert running.stdout.readline() == expected
        running.stdin.close()
        assert running.wait(20) == 0


PROGRAM = """
import signal, sys, time

def save(number, frame):
    time.sleep(0.2)
    print("saved", flush=True)
    sys.exit(75)

signal.signal(signal.SIGINT, save)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("line", ["python program.py", "cd . && python program.py; echo never"])
def test_a_script_waits_for_its_program_to_save_and_runs_nothing_after_it(project, line, number):
    project({"fdl.yml": f"commands: {{wait: {{run: '{line}'}}}}", "program.py": PROGRAM})
    fdl = [sys.executable, "-c", "import sys; from flodl.cli import main; sys.exit(main())", "wait"]
    with subprocess.Popen(fdl, stdout=subprocess.PIPE, text=True, start_new_session=True) as running:
        assert running.stdout.readline() == "ready\n"
        running.send_signal(number)
        assert running.stdout.read() == "saved\n"
        assert running.wait(20) == 75


def test_a_missing_program_is_named(project, capsys):
    project({"fdl.yml": "commands: {train: }", "train/fdl.yml": "entry: no-such-tool"})
    assert main(["train"]) == 1
    assert "`no-such-tool` was not found" in capsys.readouterr().err

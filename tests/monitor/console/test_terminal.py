"""The console on a pseudo terminal, in a separate process."""

import os
import re
import subprocess
import sys
from functools import cache

import pytest

from flodl.monitor.console.bar import _row

pty = pytest.importorskip("pty", reason="needs pseudo terminals")

PROGRAM = """
import sys, time
from flodl.monitor.console import Console
from flodl.monitor.events import Event

console = Console(2)
console(Event("run_start", {"name": "run", "total_epochs": 2}))
for epoch in range(2):
    for step in range(1, 11):
        time.sleep(0.03)
        console(Event("metrics", {"epoch": epoch, "step": step, "metrics": {"loss": 1 / step}}))
        console(Event("progress", {"epoch": epoch, "step": step, "num_steps": 10}))
        if step == 5:
            print("printed by the user")
    if epoch == 1 and "crash" in sys.argv:
        raise SystemExit("crashed")
    console(Event("epoch", {"epoch": epoch, "metrics": {"loss": 0.5}, "duration_s": 1.0}))
console(Event("run_end", {"status": "finished", "duration_s": 2.0}))
print("after the run")
"""


@cache
def run(*arguments, terminal=True, **environment):
    """Run the program and return its output to a terminal or to a file."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("FLODL_", "NO_COLOR", "CI"))
    }
    settings = {
        **kept,
        "TERM": "xterm-256color",
        "COLUMNS": "100",
        "PYTHONIOENCODING": "utf-8",
        **environment,
    }
    command = [sys.executable, "-c", PROGRAM, *arguments]
    if not terminal:
        return subprocess.run(command, env=settings, capture_output=True, text=True, check=True).stdout
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, env=settings, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:  # on Linux: the other side has closed
        pass
    os.close(ours)
    process.wait()
    return b"".join(parts).decode()


def permanent_lines(text):
    """Return what stays on the screen, given the codes that move the cursor or erase a line."""
    rows, at = [""], 0
    for token in re.findall(r"\x1b\[[0-9;?]*[a-zA-Z]|\r|\n|[^\x1b\r\n]+", text):
        if token == "\n":
            at += 1
            rows.extend([""] * (at - len(rows) + 1))
        elif token == "\x1b[1A":
            at -= 1
        elif token == "\x1b[2K":
            rows[at] = ""
        elif not token.startswith(("\x1b", "\r")):
            rows[at] += token
    return [row for row in rows if row.strip()]


def test_the_bar_is_updated_and_only_complete_lines_stay():
    text = run()
    assert "━" in text
    assert len(set(re.findall(r"step (\d+)/10", text))) > 1
    assert permanent_lines(text) == [
        "printed by the user",
        "  epoch 1/2  loss=0.5000  [1s  ETA 1s]",
        "printed by the user",
        "  epoch 2/2  loss=0.5000  [1s]",
        "  training complete in 2s  | loss: 0.5000",
        "after the run",
    ]


def test_the_cursor_is_never_left_hidden():
    for text in (run(), run("crash")):
        assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")


def test_a_crash_removes_the_bar():
    assert permanent_lines(run("crash"))[-1] == "crashed"


def test_no_color_disables_colors():
    plain, colored = run(NO_COLOR="1"), run()
    assert "\x1b[36m" in colored
    assert "\x1b[36m" not in plain


def test_a_file_gets_no_bar_even_if_color_is_forced():
    text = run(terminal=False, FORCE_COLOR="1")
    assert "\r" not in text
    assert "\x1b" not in text
    assert text.splitlines()[-2] == "  training complete in 2s  | loss: 0.5000"


def test_a_dumb_terminal_gets_plain_lines():
    text = run(TERM="dumb")
    assert "━" not in text
    assert "\x1b" not in text


def test_quiet_also_applies_to_a_terminal():
    assert permanent_lines(run(FLODL_VERBOSITY="quiet")) == ["printed by the user"] * 2 + ["after the run"]


def test_the_bar_is_cleared_when_its_epoch_ends():
    after_line = run().partition("[1s  ETA 1s]")[2]
    assert "epoch 1/2" not in after_line


def test_ci_gets_plain_lines_even_on_a_terminal():
    assert "\x1b" not in run(CI="true")
    assert "\x1b" in run(CI="false")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_eta_is_visible_at_any_width(width):
    metrics = "train.loss=0.1234 train.accuracy=0.9876 grad.norm=12.3456"
    row = _row("epoch  3/10", 0.5, "step 500/1000 (50%)", metrics, "ETA 1h 05m", width=width)
    assert row.cell_len < width
    assert ("step 500" in row.plain) == (width >= 60)
    assert row.plain.endswith("ETA 1h 05m")
    assert ("━" in row.plain) == (width >= 80)

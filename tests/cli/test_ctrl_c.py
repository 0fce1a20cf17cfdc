"""Ctrl-C while a program starts ends it with one line and exit code 130, at every moment."""

import os
import signal
import subprocess
import sys
import time

import pytest

from flodl.cli import main

# Interrupts the program when a module is about to be imported.
INTERRUPT = """
import os, runpy, signal, sys

def interrupt(event, arguments):
    if event == "import" and arguments[0] == sys.argv[1] and not reached:
        reached.append(True)
        os.kill(os.getpid(), signal.SIGINT)

reached = []
sys.addaudithook(interrupt)
runpy.run_path("train.py", run_name="__main__")
"""
# SIGINT has its default action, even if the tests ignore it.
START = "import os, signal, sys; signal.signal(2, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"


def interrupted_at(module, folder):
    """Return how the program in `folder` ends if Ctrl-C arrives at the import of a module."""
    program = INTERRUPT.replace("sys.argv[1]", repr(module))
    words = [sys.executable, "-c", START, sys.executable, "-c", program]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


@pytest.fixture
def project(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def make(template):
        assert main(["init", "proj", "--template", template]) == 0
        capsys.readouterr()
        return tmp_path / "proj"

    return make


@pytest.mark.parametrize(
    "module", ["click", "flodl.core", "flodl.cli.args.args", "datetime", "flodl.checkpoint"]
)
def test_an_interrupt_at_an_early_import_is_one_line(project, module):
    assert interrupted_at(module, project("digits")) == (130, "Stopped.\n")


def test_ctrl_c_is_handled_before_anything_slow_is_imported():
    words = [sys.executable, "-X", "importtime", "-c", "import flodl.cli"]
    done = subprocess.run(
        words, capture_output=True, text=True, env={"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    imported = [line.split("|")[-1].strip() for line in done.stderr.splitlines()]
    before = imported[imported.index("flodl") : imported.index("flodl.cli.ctrl_c")]
    assert set(before) <= {"flodl", "__future__", "atexit"}


@pytest.mark.slow
@pytest.mark.parametrize("template", ["digits", "hf"])
@pytest.mark.parametrize("module", ["torch", "numpy._core", "flodl.train.trainer"])
def test_an_interrupt_that_torch_would_discard_is_one_line(project, template, module):
    folder = project(template)
    assert interrupted_at(module, folder) == (130, "Stopped.\n")
    assert not list(folder.glob("runs/*"))


def test_an_interrupt_while_the_optimizer_imports_the_compiler_removes_the_empty_folder(project, tmp_path):
    folder = project("digits")
    (folder / "train.py").write_text(
        "import sys\n" + (folder / "train.py").read_text().replace("model = build_model()", "import wave")
    )
    assert interrupted_at("wave", folder) == (130, "Stopped.\n")
    assert list(folder.glob("runs/*")) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", [["train.py"], ["-m", "flodl.cli", "run"]])
@pytest.mark.parametrize("delay_s", [0.1, 0.3, 0.6, 1.0, 1.5, 2.5])
def test_an_interrupt_after_some_time_is_one_line(project, command, delay_s):
    folder = project("digits")
    # The interpreter itself starts before the line is printed.
    code = "import os, sys; print(flush=True); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    words = [sys.executable, "-c", START, sys.executable, "-c", code, *command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, cwd=folder, **pipes, start_new_session=True) as running:
        running.stdout.readline()
        time.sleep(delay_s)
        os.killpg(running.pid, signal.SIGINT)
        output, errors = running.communicate(timeout=120)
    if running.returncode == 75:  # it was training
        assert "--resume" in output
        return
    lines = [line for line in errors.splitlines() if line and not line.startswith("fdl: python train.py")]
    assert (running.returncode, lines) == (130, ["Stopped."])


SCRIPT = """
from dataclasses import dataclass
from flodl.cli import Args

@dataclass
class Settings:
    pass

Args(Settings).parse()
try:
    {code}
finally:
    print("cleaned up")
"""


def run(code, **options):
    words = [sys.executable, "-c", START, sys.executable, *options.get("flags", ()), "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, input="")
    return done.returncode, done.stdout, done.stderr


def test_a_program_with_args_cleans_up():
    code = SCRIPT.format(code="import signal; signal.raise_signal(signal.SIGINT)")
    assert run(code) == (130, "cleaned up\n", "Stopped.\n")


def test_a_program_may_handle_the_interrupt_itself():
    code = "import signal\n    try: signal.raise_signal(2)\n    except KeyboardInterrupt: print('mine')"
    assert run(SCRIPT.format(code=code)) == (0, "mine\ncleaned up\n", "")


def test_other_errors_keep_their_traceback():
    code, output, errors = run(SCRIPT.format(code="1 / 0"))
    assert (code, output) == (1, "cleaned up\n")
    assert errors.startswith("Traceback")
    assert errors.endswith("ZeroDivisionError: division by zero\n")


def test_a_program_without_args_keeps_its_traceback():
    code, _, errors = run("import flodl, flodl.core, signal; signal.raise_signal(signal.SIGINT)")
    assert code == -signal.SIGINT
    assert errors.startswith("Traceback")


def test_an_ignored_interrupt_stays_ignored():
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    code += SCRIPT.format(code="signal.raise_signal(signal.SIGINT)")
    assert run(code) == (0, "cleaned up\n", "")


def test_importing_the_package_from_another_module_changes_no_handler(tmp_path):
    (tmp_path / "other.py").write_text("import flodl.cli")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import other, signal; "
    code += "print(signal.getsignal(2) is signal.default_int_handler, sys.excepthook is sys.__excepthook__)"
    assert run(code)[1] == "True True\n"

"""`fdl setup`: exact commands, atomic installations, several builds next to each other."""

import fcntl
import json
import os
import pty
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest

from flodl.cli import main
from flodl.cli.machine import pip
from flodl.cli.machine.store import find_store, python_of
from flodl.core.errors import SetupError

from .tiny_wheels import TORCH, make_wheel

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the fake programs are shell scripts")

# A fake Python and pip for every environment: it records its calls, and fails if the file `fail` exists.
PYTHON = """#!/bin/sh
[ "$1" = "-P" ] && shift
echo "$@" >> {log}
case "$*" in
*"-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
*"-m pip"*) echo "Downloading thing.whl (1 MB)"; [ -e {fail} ] && {{ cat {fail}; exit 3; }} ;;
-c*) echo '{{"version": "2.13.0+cpu", "code_for": []}}' ;;
esac
exit 0
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A separate store, and no GPU regardless of the machine."""
    monkeypatch.setenv("FLODL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


@pytest.fixture
def python(tmp_path, monkeypatch):
    """A fake Python; `calls` returns its calls so far, `fail` makes pip fail with a message."""
    program, log, fail = tmp_path / "python", tmp_path / "calls", tmp_path / "fail"
    program.write_text(PYTHON.format(log=log, fail=fail))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    class FakePython:
        path = str(program)

        def calls(self):
            return log.read_text().splitlines() if log.exists() else []

        def fail(self, text):
            fail.write_text(text)

    return FakePython()


def setup(*arguments):
    return main(["setup", "--flodl", "flodl==9", *arguments])


def test_a_dry_run_prints_the_exact_commands_and_runs_none(home, python, capsys):
    assert setup("--build", "cpu", "--dry-run") == 0
    shown = capsys.readouterr().out.splitlines()
    inside = f"{home}/torch/cpu/bin/python"
    pip_install = f"{inside} -m pip install --no-input --disable-pip-version-check"
    assert shown[-3:] == [
        f"{python.path} -m venv {home}/torch/cpu",
        f"{pip_install} torch==2.13.0+cpu --index-url https://download.pytorch.org/whl/cpu",
        f"{pip_install} flodl==9",
    ]
    assert "cpu, CPU only: requested with --build" in "".join(shown)
    assert python.calls() == []
    assert not home.exists()


def test_json_is_one_object_and_other_lines_go_to_standard_error(home, python, capsys):
    assert setup("--build", "cu126", "--torch", "2.12.1", "--dry-run", "--json") == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["build"] == "cu126"
    assert found["installed"] is False
    assert "torch==2.12.1+cu126" in found["commands"][1]
    assert found["notes"] == ["no NVIDIA GPU was found; cu126 will run on the CPU only"]
    assert "Machine:" in printed.err


def test_mirrors_replace_the_public_index(home, python, capsys):
    setup("--build", "cpu", "--dry-run", "--index-url", "https://mirror/cpu")
    assert "torch==2.13.0+cpu --index-url https://mirror/cpu\n" in capsys.readouterr().out
    setup("--build", "cpu", "--dry-run", "--find-links", "wheels")
    shown = capsys.readouterr().out
    assert "torch==2.13.0+cpu --find-links wheels\n" in shown
    assert "pytorch.org" not in shown


def test_an_installation_runs_the_commands_of_the_dry_run_and_is_activated(home, python, capsys):
    setup("--build", "cpu", "--dry-run")
    announced = [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()[-3:]]
    assert setup("--build", "cpu", "--yes") == 0
    assert [call for call in python.calls() if call.startswith("-m")] == announced
    assert find_store().installed() == ["cpu"]
    assert find_store().active() == "cpu"
    shown = capsys.readouterr().out
    assert "Downloading thing.whl" in shown
    assert 'eval "$(fdl setup --export)"' in shown


def test_an_installed_build_is_reinstalled_only_with_force(home, python, capsys):
    setup("--build", "cpu", "--yes")
    before = len(python.calls())
    assert setup("--build", "cpu") == 0
    assert len(python.calls()) == before
    assert "torch 2.13.0+cpu is installed in" in capsys.readouterr().out
    main(["setup", "--use", "cpu"])
    assert setup("--build", "cpu", "--dry-run") == 0
    assert "it would be activated" in capsys.readouterr().out
    assert setup("--build", "cpu", "--force", "--yes") == 0
    assert len(python.calls()) > before
    assert not list((home / "torch").glob(".cpu*"))


def test_a_failed_installation_leaves_only_its_log(home, python, capsys):
    python.fail("ERROR: [Errno 28] No space left on device")
    assert setup("--build", "cpu", "--yes") == 1
    errors = capsys.readouterr().err
    assert "[2/3] torch==2.13.0+cpu: failed with code 3." in errors
    assert "Likely cause: the disk is full." in errors
    assert f"Full log: {home}/torch/cpu.log" in errors
    assert sorted(path.name for path in (home / "torch").iterdir()) == [".lock", "cpu.log"]
    assert find_store().installed() == []


def test_a_failed_installation_keeps_the_previous_build(home, python):
    setup("--build", "cpu", "--yes")
    (home / "torch/cpu/mark").touch()
    python.fail("Connection refused")
    assert setup("--build", "cpu", "--force", "--yes") == 1
    assert (home / "torch/cpu/mark").exists()
    assert find_store().installed() == ["cpu"]
    assert not list((home / "torch").glob(".cpu*"))


def test_leftovers_of_a_killed_installation_are_not_a_build_and_are_removed(home, python):
    (home / "torch/cpu/bin").mkdir(parents=True)
    (home / "torch/cpu/half").touch()
    assert find_store().installed() == []
    assert setup("--build", "cpu", "--yes") == 0
    assert not (home / "torch/cpu/half").exists()


def test_the_build_replaced_by_a_killed_installation_is_restored(home, python):
    setup("--build", "cpu", "--yes")
    (home / "torch/cpu").rename(home / "torch/.cpu.before")
    python.fail("no")
    assert setup("--build", "cpu", "--yes") == 1
    assert find_store().installed() == ["cpu"]


def test_a_torch_that_cannot_be_imported_is_not_installed(home, python, tmp_path, capsys):
    text = (tmp_path / "python").read_text()
    (tmp_path / "python").write_text(text.replace('"version": "2.13.0+cpu", ', '"error": "OSError: libx", '))
    assert setup("--build", "cpu", "--yes") == 1
    assert "is installed, but cannot be imported: OSError: libx" in capsys.readouterr().err
    assert not (home / "torch/cpu").exists()


def test_several_builds_can_be_installed_and_one_is_active(home, python, capsys):
    setup("--build", "cpu", "--yes")
    setup("--build", "cu130", "--yes")
    assert find_store().active() == "cu130"
    capsys.readouterr()
    assert main(["setup", "--use", "cpu"]) == 0
    assert main(["setup", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(row["build"], row["active"]) for row in rows] == [("cpu", True), ("cu130", False)]
    assert main(["setup", "--list"]) == 0
    assert f"  cpu (active)  torch 2.13.0+cpu  {home}/torch/cpu\n" in capsys.readouterr().out


def test_the_active_build_is_exported_for_a_shell(home, python, capsys):
    assert main(["setup", "--export"]) == 1
    assert "no build is active" in capsys.readouterr().err
    setup("--build", "cpu", "--yes")
    capsys.readouterr()
    assert main(["setup", "--export"]) == 0
    script = capsys.readouterr().out + 'command -v python; echo "$VIRTUAL_ENV"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{home}/torch/cpu/bin/python", f"{home}/torch/cpu"]


def test_a_build_is_removed_only_with_yes_and_shown_by_a_dry_run(home, python, capsys):
    setup("--build", "cpu", "--yes")
    assert main(["setup", "--remove", "cpu", "--dry-run"]) == 0
    assert f"Would delete {home}/torch/cpu." in capsys.readouterr().out
    assert main(["setup", "--remove", "cpu"]) == 1
    assert "Pass --yes" in capsys.readouterr().err
    assert (home / "torch/cpu").exists()
    assert main(["setup", "--remove", "cpu", "--yes"]) == 0
    assert not (home / "torch/cpu").exists()
    assert find_store().active() is None
    assert main(["setup", "--use", "cpu"]) == 1
    assert "Install it: fdl setup --build cpu" in capsys.readouterr().err


def test_without_a_terminal_yes_is_required(home, python, capsys):
    assert setup("--build", "cpu") == 1
    errors = capsys.readouterr().err
    assert f"Install torch==2.13.0+cpu in {home}/torch/cpu (up to 2.0 GB)?" in errors
    assert "There is no terminal for an answer, so nothing was done. Pass --yes." in errors
    assert python.calls() == []


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 130), (b"y\n", 0)])
def test_on_a_terminal_the_user_is_asked(home, python, answer, code):
    ours, theirs = pty.openpty()
    program = f"import sys; sys.executable = {python.path!r}; from flodl.cli import main; "
    arguments = ["setup", "--flodl", "flodl==9", "--build", "cpu"]
    real = os.path.join(sys.prefix, "bin", "python")
    with subprocess.Popen(
        [real, "-c", program + f"sys.exit(main({arguments}))"], stdin=theirs, stdout=theirs, stderr=theirs
    ) as child:
        os.close(theirs)
        os.write(ours, answer)
        seen = b""
        while chunk := _read(ours):
            seen += chunk
    os.close(ours)
    assert child.returncode == code
    assert b"(up to 2.0 GB)? [Y/n]" in seen
    assert (home / "torch/cpu").exists() == (code == 0)


def _read(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other end of the terminal was closed
        return b""


def test_two_installations_cannot_run_at_once(home, python, capsys):
    (home / "torch").mkdir(parents=True)
    with (home / "torch/.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert setup("--build", "cpu", "--yes") == 1
    assert "another `fdl setup` is running" in capsys.readouterr().err


def test_the_current_environment_changes_only_after_all_downloads(home, python, capsys):
    assert setup("--build", "cpu", "--here", "--yes") == 0
    download, install = (call for call in python.calls() if call.startswith("-m"))
    assert shlex.split(download)[:3] == ["-m", "pip", "download"]
    assert download.endswith("torch==2.13.0+cpu --index-url https://download.pytorch.org/whl/cpu")
    assert shlex.split(install)[:3] == ["-m", "pip", "install"]
    assert "--no-index --find-links" in install
    assert setup("--build", "cpu", "--here", "--force", "--yes") == 0
    assert "install --no-input --disable-pip-version-check --force-reinstall" in "".join(python.calls())
    python.fail("ConnectTimeout")
    assert setup("--build", "cpu", "--here", "--yes") == 1
    assert "download" in python.calls()[-1]
    assert "the package index cannot be reached" in capsys.readouterr().err
    assert find_store().installed() == []


def test_nothing_is_installed_if_this_python_has_the_right_build(home, capsys):
    assert main(["setup"]) in (0, 1)  # 1 if this Python has a build that does not fit the machine
    printed = capsys.readouterr()
    assert "is that build; nothing to install" in printed.out or "Pass --yes" in printed.err


def test_actions_are_mutually_exclusive(home, capsys):
    assert main(["setup", "--use", "cpu", "--list"]) == 2
    assert "are mutually exclusive" in capsys.readouterr().err


def test_free_disk_space_is_checked_first(home, python, monkeypatch, capsys):
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=1024**3))
    assert setup("--build", "cu130", "--yes") == 1
    assert "has 1.0 GB free; CUDA 13.0 needs up to 8.0 GB" in capsys.readouterr().err
    assert python.calls() == []


def test_a_home_that_is_not_writable_is_an_error_with_a_remedy(tmp_path, home, python, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLODL_HOME", str(tmp_path / "file/inside"))
    assert setup("--build", "cpu", "--yes") == 1
    assert "set FLODL_HOME to a different folder" in capsys.readouterr().err


def test_a_project_with_its_own_store_uses_it(tmp_path, home, monkeypatch):
    (tmp_path / "project/torch").mkdir(parents=True)
    (tmp_path / "project/torch/.active").write_text("cpu\n")
    (tmp_path / "project/deep").mkdir()
    assert str(find_store(tmp_path / "project/deep")) == f"project ({tmp_path / 'project'})"
    assert str(find_store(tmp_path)) == f"global ({home})"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("error: externally-managed-environment", "this Python belongs to the system"),
        ("[Errno 13] Permission denied: '/x'", "a folder is not writable"),
        ("Could not find a version that satisfies the requirement torch", "no package for this Python"),
        ("ensurepip is not available", "sudo apt install python3-venv"),
        ("something else", ""),
    ],
)
def test_failures_of_pip_are_explained(text, cause):
    assert cause in pip.explain(text)
    assert bool(pip.explain(text)) == bool(cause)


def test_the_running_flodl_is_installed_into_the_new_environment(tmp_path, monkeypatch):
    arguments = pip.flodl_requirement()
    assert arguments[0] == "--editable" or arguments[0].startswith(("flodl==", "/", "http"))
    info = tmp_path / "flodl-3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flodl\nVersion: 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert pip.flodl_requirement() == ("flodl==3",)
    (info / "direct_url.json").write_text('{"url": "https://host/flodl-3.whl", "archive_info": {}}')
    assert pip.flodl_requirement() == ("https://host/flodl-3.whl",)
    (info / "direct_url.json").write_text('{"url": "file:///gone/flodl-3.whl", "archive_info": {}}')
    assert pip.flodl_requirement() == ("flodl==3",)


@pytest.mark.slow
def test_a_real_pip_installs_wheels_from_a_folder(home, tmp_path, monkeypatch, capsys):
    """Takes seconds: real venv and pip, with tiny wheels."""
    make_wheel(tmp_path / "wheels", "torch", "2.13.0+cpu", {"torch/__init__.py": TORCH})
    make_wheel(tmp_path / "wheels", "flodl", "9", {"flodl/__init__.py": ""})
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert setup("--build", "cpu", "--find-links", str(tmp_path / "wheels"), "--yes", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["installed"], found["active"]) == (True, "cpu")
    record = find_store().record("cpu")
    assert record["torch"] == "2.13.0+cpu"
    inside = [str(python_of(home / "torch/cpu")), "-c", "import flodl, torch; print(torch.__file__)"]
    assert subprocess.check_output(inside, text=True).startswith(str(home / "torch/cpu"))


@pytest.mark.slow
def test_a_missing_wheel_is_explained(home, tmp_path):
    step = pip.Step("look", (sys.executable, "-m", "pip", "install", "--no-index", "nothing-of-that-name"))
    with pytest.raises(SetupError, match="no package for this Python"):
        pip.run(step, tmp_path / "log", lambda _line: None)

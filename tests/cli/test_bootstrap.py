"""The `./fdl` script, run as a process in a small test checkout with test packages."""

import ast
import importlib.machinery
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).parents[2] / "fdl"

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-in program is a Python file, not an .exe")

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "flodl"
version = "0.1.0"
"""

# A minimal build backend that replaces hatchling, so that nothing has to be downloaded.
BACKEND = """
import zipfile

METADATA = '''Metadata-Version: 2.1
Name: flodl
Version: 0.1.0
Requires-Dist: torch>=2.11
Provides-Extra: test
Requires-Dist: checker; extra == "test"
'''
PROGRAM = '''
import importlib.metadata, os, sys

def main():
    found = {package.name for package in importlib.metadata.distributions()}
    print(os.getcwd(), sys.argv[1:], sorted(found & {"checker", "flodl", "torch"}))
'''

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name = "flodl-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{wheel_directory}/{name}", "w") as wheel:
        folder = "flodl-0.1.0.dist-info"
        wheel.writestr("standin.py", PROGRAM)
        wheel.writestr(f"{folder}/METADATA", METADATA)
        wheel.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{folder}/entry_points.txt", "[console_scripts]\\nfdl = standin:main\\n")
        wheel.writestr(f"{folder}/RECORD", "")
    return name
"""


def make_wheel(folder, name, version):
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        info = f"{name}-{version}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def make_checkout(folder):
    folder.mkdir(parents=True)
    shutil.copy(SCRIPT, folder / "fdl")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "backend.py").write_text(BACKEND)
    return folder


def start(checkout, *arguments, python=sys.executable, cwd=None, **environment):
    """Run the script with a pip whose only source is the folder of wheels in PIP_FIND_LINKS."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "FLODL_"))}
    clean |= {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    } | environment
    return subprocess.run(
        [str(python), str(checkout / "fdl"), *arguments],
        cwd=cwd, env=clean, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def load(checkout):
    """Import the script as a module."""
    loader = importlib.machinery.SourceFileLoader("bootstrap", str(checkout / "fdl"))
    spec = importlib.util.spec_from_loader("bootstrap", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def make_ready(checkout, **facts):
    """Create a complete environment in the checkout, with a fake program."""
    folder = checkout / ".venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").symlink_to(sys.executable)
    (checkout / ".venv/pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
    (folder / "fdl").write_text("import os, sys\nprint('program', os.getcwd(), sys.argv[1:])\nsys.exit(7)\n")
    stamp = {**load(checkout).current_state(), "torch": "auto", "extras": "", **facts}
    (checkout / ".venv" / "fdl-stamp").write_text("".join(f"{k}={v}\n" for k, v in stamp.items()))


@pytest.fixture
def checkout(tmp_path):
    return make_checkout(tmp_path / "a folder with spaces")


def test_a_ready_environment_is_used_from_any_folder(checkout, tmp_path):
    make_ready(checkout)
    done = start(checkout, "quickstart", "--out", "a b", cwd=tmp_path)
    assert done.stdout == f"program {tmp_path} ['quickstart', '--out', 'a b']\n"
    assert (done.returncode, done.stderr) == (7, "")


def test_a_link_to_the_script_finds_its_checkout(checkout, tmp_path):
    make_ready(checkout)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "fdl").symlink_to(checkout / "fdl")
    assert start(tmp_path / "bin", "version").returncode == 7


def test_the_python_of_the_checkout_comes_first_for_child_processes(checkout):
    make_ready(checkout)
    program = "import os\nprint(os.environ['VIRTUAL_ENV'], os.environ['PATH'].split(os.pathsep)[0])\n"
    (checkout / ".venv/bin/fdl").write_text(program)
    done = start(checkout, VIRTUAL_ENV="/some/other/venv")
    assert done.stdout == f"{checkout}/.venv {checkout}/.venv/bin\n"


def test_a_ready_start_imports_no_slow_modules(checkout):
    make_ready(checkout)
    (checkout / ".venv/bin/fdl").write_text("")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(checkout / "fdl")], capture_output=True, text=True
    )
    script, _, _program = done.stderr.partition("| site\n")[2].partition("| site\n")
    imported = {line.split("|")[-1].strip() for line in script.splitlines()}
    assert "zlib" in imported
    assert not imported & {"subprocess", "shutil", "hashlib", "json", "re", "pathlib", "time", "fcntl"}


def test_ctrl_c_while_the_interpreter_starts_is_held_back_until_the_program_handles_it(checkout):
    make_ready(checkout)
    source = str(SCRIPT.parent / "src")
    program = f"import os, sys\nos.kill(os.getpid(), 2)\nsys.path.insert(0, {source!r})\nimport flodl.cli\n"
    (checkout / ".venv/bin/fdl").write_text(program)
    done = start(checkout, "version")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Stopped.\n")


def test_ctrl_c_is_held_back_in_the_program_only(checkout):
    make_ready(checkout)
    source = str(SCRIPT.parent / "src")
    child = "import signal, sys; print(signal.pthread_sigmask(0, []), sys._xoptions)"
    program = f"import subprocess, sys\nsys.path.insert(0, {source!r})\nfrom flodl.cli import ctrl_c\n"
    program += f"ctrl_c.stop_with_one_line()\nsubprocess.run([sys.executable, '-c', {child!r}])\n"
    (checkout / ".venv/bin/fdl").write_text(program)
    site = str(Path(pytest.__file__).parents[1])
    (checkout / ".venv/bin/fdl").write_text(
        program.replace("from flodl", f"sys.path.append({site!r})\nfrom flodl")
    )
    assert start(checkout).stdout == "set() {}\n"


def test_the_stamp_depends_on_everything_that_was_installed(checkout):
    make_ready(checkout, extras="test", torch="cpu")
    script = load(checkout)
    assert script.is_ready("test", "cpu")
    assert script.is_ready("", "")
    assert not script.is_ready("docs", "")
    assert not script.is_ready("", "default")

    (checkout / "pyproject.toml").write_text(PYPROJECT + "# changed\n")
    assert not script.is_ready("", "")
    (checkout / "pyproject.toml").write_text(PYPROJECT)
    assert script.is_ready("", "")
    (checkout / ".venv/bin/fdl").unlink()
    assert not script.is_ready("", "")


def test_a_moved_checkout_is_not_ready_and_the_reason_is_given(checkout):
    make_ready(checkout)
    moved = checkout.rename(checkout.parent / "moved")
    script = load(moved)
    assert not script.is_ready("", "")
    assert script.environment_defect(script.read_stamp(), "auto") == f"it was created for {checkout}"


def files_of(folder):
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize("has_stamp", [True, False])
def test_a_link_to_the_environment_of_another_checkout_is_refused(checkout, tmp_path, has_stamp):
    make_ready(checkout)
    if not has_stamp:
        (checkout / ".venv/fdl-stamp").unlink()
    other = make_checkout(tmp_path / "other")
    (other / ".venv").symlink_to(checkout / ".venv")
    before = files_of(checkout / ".venv")
    for _ in range(2):
        done = start(other, "version")
        owner = f", the environment of {checkout}" if has_stamp else ""
        assert done.stderr == (
            f"error: {other}/.venv is a link to {checkout}/.venv{owner}, and setup would change that "
            "environment: remove the link and run ./fdl again to create an environment for this checkout.\n"
        )
        assert (done.returncode, done.stdout) == (1, "")
    assert files_of(checkout / ".venv") == before
    assert (other / ".venv").is_symlink()


def test_a_link_that_points_nowhere_is_refused(checkout, tmp_path):
    (checkout / ".venv").symlink_to(tmp_path / "missing")
    done = start(checkout, "version")
    assert (done.returncode, f"is a link to {tmp_path}/missing," in done.stderr) == (1, True)
    assert not (tmp_path / "missing").exists()


def test_an_environment_of_another_checkout_that_exists_is_refused(checkout, tmp_path):
    other = make_checkout(tmp_path / "other")
    make_ready(checkout, root=str(other))
    before = files_of(checkout)
    done = start(checkout, "version")
    assert done.returncode == 1
    assert f".venv was created for {other}, which still exists: remove this .venv" in done.stderr
    assert files_of(checkout) == before


def test_an_environment_without_its_python_is_unusable(checkout):
    make_ready(checkout)
    (checkout / ".venv/bin/python").unlink()
    (checkout / ".venv/bin/python").symlink_to("/nowhere/python3")
    script = load(checkout)
    assert not script.is_ready("", "")
    assert script.environment_defect(script.read_stamp(), "auto") == "its Python is missing or has changed"


def test_an_environment_without_pyvenv_cfg_is_unusable(checkout):
    make_ready(checkout)
    (checkout / ".venv/pyvenv.cfg").unlink()
    script = load(checkout)
    assert script.environment_defect(script.read_stamp(), "auto") == "it is incomplete"


def test_a_different_torch_needs_a_new_environment(checkout):
    make_ready(checkout)
    (checkout / ".venv/fdl-torch").write_text("cpu")
    script = load(checkout)
    assert script.environment_defect(script.read_stamp(), "cpu") == ""
    defect = script.environment_defect(script.read_stamp(), "default")
    assert defect == "FLODL_TORCH requests default, but it has cpu"


CPU_INDEX = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]


@pytest.mark.parametrize(
    ("choice", "platform", "configured", "gpu", "arguments"),
    [
        ("auto", "linux", False, False, ["torch==2.13.0+cpu", *CPU_INDEX]),
        ("auto", "linux", False, True, ["torch==2.13.0"]),
        ("auto", "linux", True, False, ["torch==2.13.0"]),
        ("auto", "darwin", False, False, ["torch==2.13.0"]),
        ("cpu", "linux", False, True, ["torch==2.13.0+cpu", *CPU_INDEX]),
        ("cpu", "linux", True, True, ["torch==2.13.0+cpu"]),
        ("cpu", "win32", False, True, ["torch==2.13.0"]),
        ("default", "linux", False, False, ["torch==2.13.0"]),
        ("torch==2.12.1", "linux", False, False, ["torch==2.12.1"]),
    ],
)
def test_the_build_of_torch_depends_on_the_machine(
    checkout, monkeypatch, choice, platform, configured, gpu, arguments
):
    script = load(checkout)
    monkeypatch.setattr(script, "sys", SimpleNamespace(platform=platform))
    monkeypatch.setattr(script, "pip_is_configured", lambda: configured)
    monkeypatch.setattr(script, "has_gpu", lambda: gpu)
    assert script.torch_request(choice)[0] == arguments


def test_a_checkout_without_pyproject_is_refused(checkout):
    (checkout / "pyproject.toml").unlink()
    done = start(checkout, "version")
    assert done.returncode == 1
    assert done.stderr.startswith("error: this checkout of flodl is incomplete")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full."),
        ("[Errno 13] Permission denied: '/x'", "this folder cannot be written to."),
        (
            "Temporary failure in name resolution; No matching distribution",
            "the package index cannot be reached.",
        ),
        (
            "ERROR: No matching distribution found for torch==2.13.0",
            "the package index has no matching package",
        ),
    ],
)
def test_a_failure_is_explained(checkout, text, cause):
    assert f"Likely cause: {cause}" in load(checkout).explain(text)


def unsupported(script, monkeypatch):
    fake = SimpleNamespace(
        version_info=(3, 9, 1), version="3.9.1 (x)", executable="py", argv=["./fdl", "version"]
    )
    monkeypatch.setattr(script, "sys", fake)


def test_an_unsupported_python_without_an_alternative_is_an_error(checkout, monkeypatch):
    script = load(checkout)
    unsupported(script, monkeypatch)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        script.SetupFailed, match=r"needs Python 3\.11, 3\.12 or 3\.13, but this is 3\.9\.1 \(py\)"
    ):
        script.use_supported_python()


def test_an_unsupported_python_restarts_in_a_supported_one(checkout, monkeypatch, tmp_path):
    script = load(checkout)
    unsupported(script, monkeypatch)
    name = f"python3.{sys.version_info[1]}"
    for folder, target in (("broken", "/bin/false"), ("good", sys.executable)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).symlink_to(target)
    good = str(tmp_path / "good" / name)
    monkeypatch.setenv("PATH", f"{tmp_path / 'broken'}:{tmp_path / 'good'}")

    class Replaced(Exception):
        """Raised in place of execv."""

    def replace(*call):
        raise Replaced(call)

    monkeypatch.setattr(script.os, "execv", replace)
    with pytest.raises(Replaced) as replaced:
        script.use_supported_python()
    assert replaced.value.args == ((good, [good, str(checkout / "fdl"), "version"]),)


def test_old_versions_of_python_can_parse_the_script():
    ast.parse(SCRIPT.read_text(), feature_version=(3, 7))


def test_a_second_start_waits_for_the_first(checkout):
    make_ready(checkout)
    script = load(checkout)
    stamp = checkout / ".venv/fdl-stamp"
    ready = stamp.read_text()
    stamp.unlink()
    with script.acquire_lock():
        waiting = subprocess.Popen(
            [sys.executable, str(checkout / "fdl"), "version"], stderr=subprocess.PIPE, text=True
        )
        assert "waiting for it" in waiting.stderr.readline()
        stamp.write_text(ready)
    assert waiting.communicate(timeout=60) == (None, "")
    assert waiting.returncode == 7


@pytest.mark.slow
def test_setup_then_reuse_then_an_extra_then_a_failure(checkout, tmp_path):
    make_ready(checkout)
    (checkout / ".venv/bin/python").unlink()
    (checkout / ".venv/bin/python").symlink_to("/nowhere/python3")
    wheels = tmp_path / "some wheels"
    wheels.mkdir()
    make_wheel(wheels, "torch", "2.13.0")
    make_wheel(wheels, "checker", "1.0")
    offline = {"PIP_FIND_LINKS": wheels.as_uri()}

    first = start(checkout, "version", "-v", cwd=tmp_path, **offline)
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"{tmp_path} ['version', '-v'] ['flodl', 'torch']\n"
    assert "Recreating .venv: its Python is missing or has changed." in first.stderr
    assert "[2/3] PyTorch: torch 2.13.0, from the index that pip is configured to use" in first.stderr
    assert "torch-2.13.0" in (checkout / ".venv/fdl-setup.log").read_text()
    assert (checkout / ".venv/bin/pip").is_file()

    second = start(checkout, "version", **offline)
    assert (second.returncode, second.stderr) == (0, "")

    third = start(checkout, "test", **offline)
    assert third.returncode == 0, third.stderr
    assert "[1/3] .venv already exists" in third.stderr
    assert third.stdout.endswith("['checker', 'flodl', 'torch']\n")

    (wheels / "checker-1.0-py3-none-any.whl").unlink()
    (checkout / "backend.py").write_text(BACKEND.replace("checker", "missing"))
    (checkout / "pyproject.toml").write_text(PYPROJECT + "# changed\n")
    broken = start(checkout, "version", **offline)
    assert (broken.returncode, broken.stdout) == (1, "")
    assert "error: setup failed at [3/3] flodl and its dependencies: .[test]\n" in broken.stderr
    assert "No matching distribution found for missing" in broken.stderr
    assert "Likely cause: the package index has no matching package" in broken.stderr
    assert not (checkout / ".venv/fdl-stamp").exists()


def test_an_interrupt_leaves_no_stamp(checkout):
    make_ready(checkout)
    (checkout / "pyproject.toml").write_text(PYPROJECT + "# changed\n")
    # A python whose pip never answers.
    (checkout / ".venv/bin/python").unlink()
    (checkout / ".venv/bin/python").write_text('#!/bin/sh\n[ "$1" = -c ] && exit 0\nexec sleep 60\n')
    (checkout / ".venv/bin/python").chmod(0o755)
    stamp = checkout / ".venv/fdl-stamp"
    stamp.write_text("extras=\n")
    running = subprocess.Popen(
        [sys.executable, str(checkout / "fdl"), "version"], stderr=subprocess.PIPE, text=True
    )
    for line in running.stderr:
        if line.startswith("[1/3]"):
            break
    time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    assert "Stopped. Run ./fdl again to continue." in running.communicate(timeout=60)[1]
    assert running.returncode == 130
    assert not stamp.exists()


@pytest.mark.parametrize("choice", ["bogus", "cuda", "torchvision", "torch-nightly"])
def test_an_invalid_flodl_torch_is_refused_before_anything_is_changed(tmp_path, choice):
    script = tmp_path / "fdl"
    shutil.copy(Path(__file__).parents[2] / "fdl", script)
    (tmp_path / "pyproject.toml").write_text("")
    environment = {**os.environ, "FLODL_TORCH": choice}
    done = subprocess.run(
        [sys.executable, script, "version"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert f"FLODL_TORCH={choice} is not a build of PyTorch." in done.stderr
    assert not (tmp_path / ".venv").exists()

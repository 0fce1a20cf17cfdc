"""`fdl diagnose`: reports facts and problems even if parts are missing or broken."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import flodl
from flodl.cli import main
from flodl.cli.machine.hardware import Gpu, Hardware
from flodl.cli.machine.problems import find_problems
from flodl.cli.machine.torch_facts import query_torch

SOURCE = Path(flodl.__file__).parents[1]
H200 = "echo '0, NVIDIA H200, 143771, 580.95.05, 9.0'"
FAKE_TORCH = """
from types import SimpleNamespace as Names
__version__ = {version!r}
version = Names(cuda={cuda!r}, hip=None)
device = Names(name="NVIDIA H200", total_memory=5, major=9, minor=0)
cuda = Names(is_available=lambda: {usable}, device_count=lambda: 1, get_arch_list=lambda: {archs!r},
             get_device_properties=lambda index: device)
backends = Names(mps=Names(is_available=lambda: False), cudnn=Names(version=lambda: 91002))
get_num_threads = lambda: 1
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """No GPU, no settings, an empty store."""
    monkeypatch.setenv("FLODL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "programs").mkdir()
    return tmp_path


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def diagnose(home, *, torch=None, **environment):
    """Run it as a process, with a fake torch before the real one on the path."""
    if torch is not None:
        put(home / "packages/torch/__init__.py", torch)
    paths = [str(home / "packages"), str(SOURCE)]
    code = "import sys; from flodl.cli import main; sys.exit(main(['diagnose', *sys.argv[1:]]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_report_has_every_section(home, capsys):
    assert main(["diagnose"]) == 0
    shown = capsys.readouterr().out
    sections = (
        "flodl",
        "System",
        "GPUs",
        "torch",
        "libtorch",
        "Environment",
        "Packages",
        "Extras",
        "Problems",
    )
    positions = [shown.index(f"{title}\n  ") for title in sections]
    assert positions == sorted(positions)
    assert f"FLODL_HOME             {home / 'home'}" in shown


@pytest.mark.slow
def test_json_has_the_documented_keys(home, capsys):
    import torch

    assert main(["diagnose", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["context"] == {"mode": "global", "root": str(home / "home")}
    assert report["gpus"] == []  # not `cuda.devices`
    assert report["torch"]["version"] == torch.__version__
    assert report["libtorch"]["variant"] == "python"
    assert report["system"]["threads"] >= 1
    assert report["packages"]["click"]
    assert "present" in report["extras"]["test"]
    assert report["environment"]["FLODL_HOME"] == str(home / "home")
    assert report["environment"]["CUDA_VISIBLE_DEVICES"] is None


def test_it_works_without_torch(home):
    """A Python without site-packages, with links to all requirements of flodl except torch and numpy."""
    (home / "packages").mkdir()
    for package in Path(find_spec("click").origin).parents[1].iterdir():
        if not package.name.startswith(("torch", "numpy", "flodl")):
            (home / "packages" / package.name).symlink_to(package)
    code = (
        f"import sys; sys.path[:0] = [{str(home / 'packages')!r}, {str(SOURCE)!r}]; "
        "from flodl.cli import main; sys.exit(main(['diagnose', *sys.argv[1:]]))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code, "--json"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert (report["torch"], report["libtorch"]) == (None, None)
    assert report["problems"][0] == {
        "what": "torch is not installed",
        "do": "Install the build that fits this machine: fdl setup",
    }
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    assert "torch\n  not installed" in done.stdout


@pytest.mark.parametrize(
    ("torch", "error"),
    [
        ("raise ImportError('libcudart.so.13: cannot open')", "ImportError: libcudart.so.13: cannot open"),
        ("import os; os.abort()", "importing torch ended the process with"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("1 / 0", "ZeroDivisionError"),
        ("", "AttributeError"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_broken_torch_is_a_problem_not_a_traceback(home, torch, error):
    report = diagnose(home, torch=torch)
    assert error in report["torch"]["error"]
    assert report["problems"][0]["what"].startswith("torch does not work: ")
    assert report["problems"][0]["do"] == "Reinstall it: fdl setup --here --force"


def test_a_supported_gpu_is_not_a_problem(home):
    put(home / "programs/nvidia-smi", f"#!/bin/sh\n{H200}\n")
    torch = FAKE_TORCH.format(version="2.13.0+cu130", cuda="13.0", usable=True, archs=["sm_80", "sm_90"])
    report = diagnose(home, torch=torch)
    assert report["gpus"] == [
        {
            "index": 0,
            "name": "NVIDIA H200",
            "vendor": "nvidia",
            "sm": "9.0",
            "vram_bytes": 143771 * 1024**2,
            "arch_compatible": True,
        }
    ]
    assert report["driver"]["nvidia"] == "580.95.05"
    assert report["torch"]["cudnn"] == 91002
    assert report["problems"] == []


@pytest.mark.parametrize(
    ("torch", "environment", "what", "remedy"),
    [
        (("2.13.0+cpu", None, False, []), {}, "cannot use the NVIDIA GPU", "fdl setup --build cu130"),
        (("2.13.0+cu130", "13.0", True, ["sm_75"]), {}, "does not support GPU 0", "fdl setup --build cu130"),
        (("2.13.0+cu130", "13.0", False, ["sm_90"]), {}, "finds no usable GPU", "Update the driver"),
        (
            ("2.13.0+cu130", "13.0", False, ["sm_90"]),
            {"CUDA_VISIBLE_DEVICES": ""},
            "CUDA_VISIBLE_DEVICES='' hides the GPUs",
            "unset CUDA_VISIBLE_DEVICES",
        ),
        (("2.4.0+cu130", "13.0", True, ["sm_90"]), {}, "torch 2.4.0+cu130 is too old", "fdl setup"),
    ],
)
def test_problems_have_a_remedy(home, torch, environment, what, remedy):
    put(home / "programs/nvidia-smi", f"#!/bin/sh\n{H200}\n")
    version, cuda, usable, archs = torch
    text = FAKE_TORCH.format(version=version, cuda=cuda, usable=usable, archs=archs)
    (problem,) = diagnose(home, torch=text, **environment)["problems"]
    assert what in problem["what"]
    assert remedy in problem["do"]


def report_with(**facts):
    torch = {"version": "2.13.0+cpu", "cuda": None, "hip": None}
    return {"torch": torch, "system": {"python": "3.12.1"}, "environment": {}, "gpus": [], **facts}


def test_system_problems_are_found():
    system = {"python": "3.14.0", "disk_free_gb": 0.2, "shared_memory_gb": 0.06}
    report = report_with(
        system=system, packages={"numpy": None}, libtorch={"path": "precompiled/cu128", "missing": True}
    )
    found = [problem.what for problem in find_problems(Hardware("linux", "x86_64"), report)]
    assert found == [
        "packages that flodl requires are not installed: numpy",
        "Python 3.14.0 is not supported by flodl",
        "the disk of this folder has 0.2 GB free",
        "shared memory (/dev/shm) is only 0.06 GB; data workers exchange batches through it",
        "the active libtorch, precompiled/cu128, no longer exists",
    ]


def test_an_amd_gpu_needs_a_rocm_build():
    hardware = Hardware("linux", "x86_64", gpus=(Gpu(0, "MI300X", "amd", "gfx942"),))
    (problem,) = find_problems(hardware, report_with())
    assert problem.do == "fdl setup --build rocm7.2"


def test_a_failing_driver_is_a_problem_even_without_a_gpu(home):
    put(home / "programs/nvidia-smi", "#!/bin/sh\necho 'No devices were found'; exit 6\n")
    torch = FAKE_TORCH.format(version="2.13.0+cpu", cuda=None, usable=False, archs=[])
    (problem,) = diagnose(home, torch=torch)["problems"]
    assert problem["what"].endswith("exited with 6: No devices were found")


def test_invalid_records_are_ignored(home):
    put(home / "home/torch/cpu/fdl-build.json", "[1, 2")
    put(home / "home/torch/cu130/fdl-build.json", '{"torch": 3}')
    put(home / "home/libtorch/.active", "precompiled/gone\n")
    torch = FAKE_TORCH.format(version="2.13.0+cpu", cuda=None, usable=False, archs=[])
    report = diagnose(home, torch=torch)
    assert report["builds"] == {"installed": [], "active": None}
    assert [problem["what"] for problem in report["problems"]] == [
        "the active libtorch, precompiled/gone, no longer exists"
    ]


def test_a_missing_python_is_reported():
    assert "cannot be started" in query_torch("/nowhere/python")["error"]


@pytest.mark.slow
@pytest.mark.parametrize("words", ["diagnose", "setup --dry-run --build cpu", "libtorch info", "api-ref Rng"])
def test_the_program_itself_never_imports_torch(home, words):
    code = (
        "import sys; from flodl.cli import main; code = main(sys.argv[1:]); "
        "sys.exit(code or str({'torch', 'numpy'} & set(sys.modules) or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words.split()], capture_output=True, text=True)
    assert done.stderr.strip() == ""

"""`fdl libtorch build`: the plan, what is missing, and steps that continue after a failure."""

import json
import os
import shutil
from pathlib import Path

import pytest

from flodl.cli import main
from flodl.cli.machine import source_build, toolchain
from flodl.cli.machine.hardware import Hardware
from flodl.cli.machine.store import Store
from flodl.core.errors import SetupError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the fake programs are shell scripts")

PROGRAMS = {
    "nvidia-smi": "echo '0, GTX 1060, 6144, 570.1, 6.1'; echo '1, RTX 5080, 16384, 570.1, 12.0';"
    "echo '2, GTX 1080, 8192, 570.1, 6.1'",
    "nvcc": "case $1 in --version) echo 'release 12.8, V12';; *) echo sm_61; echo sm_90; echo sm_120;; esac",
    "cmake": "echo cmake version 4.0.1",
    "ninja": "echo 1.12",
    "git": "echo 1234 refs/tags/v2.13.0",
    "g++": "echo 14",
}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with two kinds of GPUs and the programs that a build needs; remove some with `without`."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, script in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(toolchain, "DISK_BYTES", 1)
    monkeypatch.setattr("flodl.cli.commands.libtorch_build.toolchain.find_toolkits", local_toolkits(tmp_path))
    monkeypatch.setenv("FLODL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def without(*names):
        for name in names:
            (folder / name).unlink()

    return without


def local_toolkits(root):
    """Ignore the toolkits in /usr/local of the machine that runs the tests."""
    find = toolchain.find_toolkits
    return lambda folder=root: find(folder)


def test_the_plan_has_the_architectures_with_their_gpus_and_every_command(machine, capsys):
    assert main(["libtorch", "build", "--dry-run", "--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["archs"] == [
        {"arch": "6.1", "origin": "GPU 0, GTX 1060, GPU 2, GTX 1080"},
        {"arch": "12.0", "origin": "GPU 1, RTX 5080"},
    ]
    assert (found["cuda"], found["built"], found["missing"]) == ("12.8", False, [])
    clone, _venv, _pip, configure, build = found["commands"]
    assert clone[:6] == ["git", "clone", "--depth", "1", "--branch", "v2.13.0"]
    assert "TORCH_CUDA_ARCH_LIST=6.1;12.0" in configure
    assert "-DUSE_CUDA=ON" in configure
    assert build[-2:] == ["-j", str(found["jobs"])]
    assert found["path"].endswith("libtorch/builds/sm61-sm120")
    assert "TORCH_CUDA_ARCH_LIST=6.1;12.0\n  6.1    GPU 0, GTX 1060" in printed.err
    assert not Path("home").exists()


def test_a_wheel_has_a_version_that_names_the_architectures(machine, capsys):
    assert main(["libtorch", "build", "--wheel", "--dry-run"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "PYTORCH_BUILD_VERSION=2.13.0+sm61.sm120" in last
    assert "--no-build-isolation" in last


def test_architectures_and_jobs_can_be_given(machine, capsys):
    assert main(["libtorch", "build", "--archs", "12.0 6.1,9.0+PTX", "--jobs", "3", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "TORCH_CUDA_ARCH_LIST=6.1;9.0+PTX;12.0" in shown
    assert "Jobs:     3 (--jobs)" in shown
    assert "builds/sm61-sm90ptx-sm120" in shown
    assert main(["libtorch", "build", "--jobs", "0"]) == 2


@pytest.mark.parametrize("archs", ["", "61", "six", "6.1;;120"])
def test_other_texts_are_not_architectures(machine, archs, capsys):
    assert main(["libtorch", "build", "--archs", archs]) == 1
    assert "Write them like '6.1;12.0'" in capsys.readouterr().err


def test_everything_that_is_missing_is_listed_with_a_remedy_and_nothing_starts(machine, capsys):
    machine("nvcc", "cmake", "ninja", "g++")
    assert main(["libtorch", "build", "--yes"]) == 1
    errors = capsys.readouterr().err
    assert "cmake was not found: pip install 'cmake>=3.27'" in errors
    assert "ninja was not found" in errors
    assert "g++ was not found" in errors
    assert "nvcc was not found. Install a CUDA toolkit (CUDA 12.8 to 12.9 compiles for 6.1, 12.0)" in errors
    assert not Path("home").exists()


def test_a_toolkit_that_cannot_compile_for_all_gpus_is_refused(machine, capsys):
    assert main(["libtorch", "build", "--archs", "6.1;10.3", "--dry-run"]) == 1
    errors = capsys.readouterr().err
    assert "does not compile for 10.3. CUDA 12.9 to 12.9 compiles for 6.1, 10.3" in errors


def test_the_toolkit_of_cuda_home_comes_first(machine, tmp_path, monkeypatch):
    (tmp_path / "cuda/bin").mkdir(parents=True)
    newer = PROGRAMS["nvcc"].replace("12.8", "12.9").replace("sm_90", "sm_103")
    (tmp_path / "cuda/bin/nvcc").write_text(f"#!/bin/sh\n{newer}\n")
    (tmp_path / "cuda/bin/nvcc").chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    found = toolchain.find_toolkits(tmp_path)
    assert [one.version for one in found] == ["12.9", "12.8"]
    assert toolchain.choose_toolkit(["6.1", "9.0a"], found).version == "12.8"
    assert toolchain.choose_toolkit(["6.1", "10.3"], found).version == "12.9"


def test_sources_without_a_network_are_refused(machine, tmp_path, capsys):
    git = tmp_path / "programs/git"
    git.write_text("#!/bin/sh\necho 'fatal: Could not resolve host: github.com' >&2\nexit 128\n")
    assert main(["libtorch", "build", "--yes"]) == 1
    assert (
        "Could not resolve host: github.com). Check the network, or pass a checkout"
        in capsys.readouterr().err
    )
    (tmp_path / "empty").mkdir()
    assert main(["libtorch", "build", "--yes", "--source", "empty"]) == 1
    assert "empty has no CMakeLists.txt: it is not a checkout of PyTorch" in capsys.readouterr().err


def test_a_published_build_for_all_gpus_is_mentioned(machine, capsys):
    assert main(["libtorch", "build", "--archs", "9.0;12.0", "--dry-run"]) == 0
    assert "the published build cu130 supports all of these" in capsys.readouterr().out
    assert main(["libtorch", "build", "--archs", "6.1;12.0", "--dry-run"]) == 0
    assert "the published build" not in capsys.readouterr().out


def test_setup_mentions_the_build_for_gpus_without_one(machine, capsys):
    assert main(["setup", "--flodl", "flodl==9", "--dry-run"]) == 0
    assert "fdl libtorch build --wheel" in capsys.readouterr().out


def test_a_machine_without_gpus_needs_the_architectures(machine, capsys):
    machine("nvidia-smi")
    assert main(["libtorch", "build"]) == 1
    assert "Name them: --archs '6.1;12.0'" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs a CUDA toolkit")
def test_a_real_toolkit_is_recognized():
    found = toolchain.find_toolkits()
    assert found
    assert "9.0" in found[0].capabilities


CMAKE = """
cmake_minimum_required(VERSION 3.18)
project(torch CXX)
add_library(torch SHARED torch.cpp)
install(TARGETS torch DESTINATION lib)
install(CODE "message(STATUS \\"archs=\\$ENV{TORCH_CUDA_ARCH_LIST}\\")")
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cmake") or not shutil.which("ninja"), reason="needs cmake and ninja")
def test_a_real_build_continues_after_a_failure(tmp_path):
    """Real venv, pip, cmake and ninja, with a tiny project in place of torch."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(CMAKE)
    (source / "requirements.txt").write_text("")
    (source / "torch.cpp").write_text("int answer() { return forty_two; }")
    toolkit = toolchain.Toolkit(Path("nvcc"), "12.8", ("6.1", "12.0"))
    spec = source_build.BuildSpec(source_build.parse_archs("6.1;12.0"), toolkit, 1, "", source=source)
    store = Store(tmp_path / "home")
    layout = source_build.Layout(store, spec)
    lines = []
    with pytest.raises(SetupError, match="forty_two") as caught:
        source_build.build(layout, lines.append)
    assert "compile for 6.1;12.0 with 1 jobs: failed" in str(caught.value)
    assert not layout.target.exists()
    (source / "torch.cpp").write_text("int answer() { return 42; }")
    lines.clear()
    source_build.build(source_build.Layout(store, spec), lines.append)
    titles = [line for line in lines if line.startswith("[")]
    assert [title.endswith("done earlier") for title in titles] == [True, True, True, False]
    assert "    66 % of 3 files" in lines
    assert "archs=6.1;12.0" in (layout.work / "build.log").read_text()
    assert (layout.target / "lib/libtorch.so").is_file()
    assert "archs=6.1 12.0\n" in (layout.target / ".arch").read_text()


def test_jobs_follow_the_memory():
    small = Hardware("linux", "x86_64", num_threads=16, ram_bytes=6 * 1024**3)
    assert source_build.jobs_of(small, None)[0] == 1
    assert source_build.jobs_of(small, 5) == (5, "--jobs")

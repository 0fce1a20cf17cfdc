"""`fdl libtorch`: find, activate and download libtorch, and compile against it."""

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from flodl.cli import main
from flodl.cli.machine import libtorch
from flodl.cli.machine.archive import archive_url
from flodl.cli.machine.builds import find_build
from flodl.cli.machine.hardware import Hardware
from flodl.cli.machine.store import find_store
from flodl.core.errors import SetupError


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FLODL_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


def make_archive(path, *, version="2.13.0+cpu", library="lib/libtorch.so"):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"libtorch/{library}", "a library")
        archive.writestr("libtorch/include/torch/torch.h", "")
        archive.writestr("libtorch/share/cmake/Torch/TorchConfig.cmake", "")
        archive.writestr("libtorch/build-version", version + "\n")
    return f"file://{path}"


def run(*arguments):
    return main(["libtorch", *arguments])


def test_the_group_without_a_command_shows_its_commands(capsys):
    assert run() == 0
    shown = capsys.readouterr().out
    for name in ("list", "info", "path", "env", "activate", "remove", "download"):
        assert f"\n  {name} " in shown


def test_the_libtorch_of_this_python_needs_no_setup(home, capsys):
    import torch

    assert run("list", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["variant"], row["active"]) == ("python", True)
    assert Path(row["path"]) == Path(torch.__path__[0])
    assert row["version"] == torch.__version__
    assert run("info") == 0
    shown = capsys.readouterr().out
    assert f"Version:  {torch.__version__}" in shown
    assert f"CMake:    {torch.utils.cmake_prefix_path}" in shown


def test_info_lists_every_folder_that_a_compiler_needs(home, capsys):
    assert run("info", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert all(Path(folder).is_dir() for folder in [*facts["include"], facts["lib"], facts["cmake_prefix"]])
    assert (Path(facts["include"][1]) / "torch/torch.h").is_file()
    for name, folder in (("root", facts["path"]), ("include", facts["include"][0]), ("lib", facts["lib"])):
        assert run("path", name) == 0
        assert capsys.readouterr().out.strip() == folder


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
def test_a_shell_can_evaluate_the_environment(home, capsys):
    assert run("env") == 0
    script = capsys.readouterr().out + 'printf "%s\\n" "$LIBTORCH" "$CMAKE_PREFIX_PATH" "$LD_LIBRARY_PATH"'
    environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "/before"}
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env=environment)
    root, cmake, loader = done.stdout.splitlines()
    assert (Path(root) / "include/torch/csrc").is_dir()
    assert cmake == f"{root}/share/cmake"
    assert loader == f"{root}/lib:/before"


def test_an_archive_is_downloaded_unpacked_and_activated(home, tmp_path, capsys):
    url = make_archive(tmp_path / "libtorch.zip")
    assert run("download", "--cpu", "--url", str(tmp_path / "libtorch.zip"), "--yes") == 0  # a path works too
    folder = home / "libtorch/precompiled/cpu"
    assert (folder / "lib/libtorch.so").read_text() == "a library"
    notes = dict(line.split("=", 1) for line in (folder / ".arch").read_text().splitlines())
    assert notes == {"cuda": "none", "torch": "2.13.0", "archs": "cpu", "source": url, "variant": "cpu"}
    assert find_store().active("libtorch") == "precompiled/cpu"
    assert sorted(path.name for path in folder.parent.iterdir()) == ["cpu"]
    capsys.readouterr()
    assert run("info") == 0
    assert "Active:   precompiled/cpu\nVersion:  2.13.0+cpu\nCUDA:     none" in capsys.readouterr().out


def test_the_same_version_is_downloaded_again_only_with_force(home, tmp_path, capsys):
    url = make_archive(tmp_path / "libtorch.zip")
    run("download", "--cpu", "--url", url, "--yes", "--no-activate")
    assert find_store().active("libtorch") is None
    assert run("download", "--cpu", "--url", "file:///gone.zip") == 0
    assert "This version exists already" in capsys.readouterr().out
    mark = home / "libtorch/precompiled/cpu/mark"
    mark.touch()
    assert run("download", "--cpu", "--url", url, "--yes", "--force") == 0
    assert not mark.exists()


@pytest.mark.parametrize("flaw", ["gone", "cut", "damaged", "empty"])
def test_a_failed_download_keeps_the_previous_version(home, tmp_path, capsys, flaw):
    good = make_archive(tmp_path / "good.zip")
    run("download", "--cpu", "--url", good, "--yes")
    bad = tmp_path / "bad.zip"
    url = make_archive(bad, library="lib/nothing.txt" if flaw == "empty" else "lib/libtorch.so")
    content = bad.read_bytes()
    if flaw == "gone":
        bad.unlink()
    elif flaw == "cut":
        bad.write_bytes(content[: len(content) // 2])
    elif flaw == "damaged":
        bad.write_bytes(content.replace(b"a library", b"a LIBRARY"))
    assert run("download", "--cpu", "--url", url, "--yes", "--force") == 1
    assert "error: file://" in capsys.readouterr().err
    folder = home / "libtorch/precompiled"
    assert [path.name for path in folder.iterdir()] == ["cpu"]
    assert (folder / "cpu/lib/libtorch.so").read_text() == "a library"


@pytest.mark.parametrize("url", ["not a url", "ftp://127.0.0.1:1/x.zip", "http://127.0.0.1:1/x.zip"])
def test_a_url_that_cannot_be_reached_is_an_error_with_a_remedy(home, capsys, url):
    assert run("download", "--cpu", "--url", url, "--yes") == 1
    assert f"error: {url} cannot be downloaded: " in capsys.readouterr().err
    assert list((home / "libtorch/precompiled").iterdir()) == []


def test_a_custom_folder_becomes_the_active_one(home, tmp_path, capsys):
    url = make_archive(tmp_path / "libtorch.zip", version="2.13.0+cu130")
    assert run("download", "--cuda", "13.0", "--url", url, "--path", str(tmp_path / "mine"), "--yes") == 0
    assert find_store().active("libtorch") == str(tmp_path / "mine")
    capsys.readouterr()
    assert run("info", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["path"], facts["version"], facts["cuda"]) == (
        str(tmp_path / "mine"),
        "2.13.0+cu130",
        "13.0",
    )
    assert facts["archs"].startswith("7.5 8.0")
    assert not (home / "libtorch/precompiled").exists()


def test_a_folder_with_other_content_is_not_changed(home, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").touch()
    # With a URL, because not every platform has an archive.
    words = ("--cpu", "--url", "https://mirror/x.zip", "--path", str(tmp_path / "mine"), "--yes")
    assert run("download", *words) == 1
    assert "is not empty and does not contain libtorch" in capsys.readouterr().err
    assert (tmp_path / "mine/thesis.txt").exists()


def test_a_dry_run_shows_url_and_folder_and_downloads_nothing(home, capsys):
    assert run("download", "--cuda", "12.6", "--dry-run", "--url", "https://mirror/x.zip") == 0
    shown = capsys.readouterr().out
    assert "from https://mirror/x.zip" in shown
    assert f"to   {home}/libtorch/precompiled/cu126" in shown
    assert not home.exists()


def test_cpu_and_cuda_are_mutually_exclusive(capsys):
    assert run("download", "--cpu", "--cuda", "13.0") == 2
    assert "mutually exclusive" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("build", "system", "processor", "name"),
    [
        ("cpu", "linux", "x86_64", "cpu/libtorch-shared-with-deps-2.13.0%2Bcpu.zip"),
        ("cu126", "windows", "x86_64", "cu126/libtorch-win-shared-with-deps-2.13.0%2Bcu126.zip"),
        ("cpu", "darwin", "arm64", "cpu/libtorch-macos-arm64-2.13.0.zip"),
    ],
)
def test_archives_have_public_urls(build, system, processor, name):
    found = archive_url(find_build(build), Hardware(system, processor))
    assert found == f"https://download.pytorch.org/libtorch/{name}"


def test_a_platform_without_archives_is_referred_to_the_wheel():
    with pytest.raises(SetupError, match="Use the libtorch in the torch wheel"):
        archive_url(find_build("cpu"), Hardware("linux", "aarch64"))


def test_variants_are_activated_by_name(home, tmp_path, capsys):
    run("download", "--cpu", "--url", make_archive(tmp_path / "libtorch.zip"), "--yes", "--no-activate")
    assert run("activate", "precompiled/cpu") == 0
    assert (home / "libtorch/.active").read_text() == "precompiled/cpu\n"
    assert run("activate", "python") == 0
    capsys.readouterr()
    assert run("list") == 0
    shown = capsys.readouterr().out
    assert "  python (active)  " in shown
    assert "  precompiled/cpu  " in shown


@pytest.mark.parametrize("action", ["activate", "remove"])
def test_the_variant_is_required_and_must_exist(home, capsys, action):
    assert run(action) == 1
    assert "Variants: python." in capsys.readouterr().err
    assert run(action, "pyhton") == 1
    assert "there is no libtorch 'pyhton'. Did you mean 'python'?" in capsys.readouterr().err


def test_an_archive_is_removed_only_with_yes(home, tmp_path, capsys):
    run("download", "--cpu", "--url", make_archive(tmp_path / "libtorch.zip"), "--yes")
    folder = home / "libtorch/precompiled/cpu"
    assert run("remove", "precompiled/cpu", "--dry-run") == 0
    assert f"Would delete {folder}." in capsys.readouterr().out
    assert run("remove", "precompiled/cpu") == 1
    assert folder.is_dir()
    assert run("remove", "precompiled/cpu", "--yes") == 0
    assert not folder.exists()
    assert find_store().active("libtorch") is None


def test_the_torch_of_a_python_is_never_removed(home, capsys):
    assert run("remove", "python", "--yes") == 1
    assert "was not installed by `fdl libtorch`, so it is not deleted" in capsys.readouterr().err


def test_the_libtorch_of_a_build_is_removed_by_setup(home, capsys):
    site = home / "torch/cpu/lib/python3.11/site-packages"
    (site / "torch/lib").mkdir(parents=True)
    (site / "nvidia/cublas/lib").mkdir(parents=True)
    (site / "torch/version.py").write_text("__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\n")
    (home / "torch/cpu/fdl-build.json").write_text('{"torch": "2.13.0+cu130"}')
    one = libtorch.find(find_store(), "torch/cpu")
    assert (one.version, one.cuda, one.build) == ("2.13.0+cu130", "13.0", "cu130")
    assert one.library_path == (site / "torch/lib", site / "nvidia/cublas/lib")
    assert run("remove", "torch/cpu", "--yes") == 1
    assert "To remove the build: fdl setup --remove cpu" in capsys.readouterr().err


def test_a_missing_active_variant_is_reported(home, capsys):
    find_store().activate("precompiled/cu128", kind="libtorch")
    assert run("info") == 1
    assert "there is no libtorch 'precompiled/cu128'" in capsys.readouterr().err


needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
needs_cmake = pytest.mark.skipif(
    not (shutil.which("cmake") and shutil.which("g++")), reason="needs cmake and g++"
)


@pytest.mark.slow
@needs_compiler
def test_a_program_compiles_with_these_folders(home, tmp_path, capsys):
    (tmp_path / "main.cpp").write_text(
        "#include <ATen/Version.h>\n#include <iostream>\nint main() { std::cout << at::show_config(); }\n"
    )
    run("info", "--json")
    facts = json.loads(capsys.readouterr().out)
    includes = [f"-I{folder}" for folder in facts["include"]]
    libraries = [f"-L{facts['lib']}", "-ltorch", "-ltorch_cpu", "-lc10"]
    command = ["g++", "-std=c++20", "main.cpp", *includes, *libraries, "-o", "program"]
    subprocess.run(command, cwd=tmp_path, check=True)
    environment = {**os.environ, **facts["environment"]}
    done = subprocess.run([tmp_path / "program"], env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("PyTorch built with:")


@pytest.mark.slow
@needs_cmake
def test_cmake_finds_torch_and_the_program_computes(home, tmp_path, capsys):
    """Takes seconds to compile: the headers of torch are large."""
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(small CXX)\nfind_package(Torch REQUIRED)\n"
        'add_executable(small main.cpp)\ntarget_link_libraries(small "${TORCH_LIBRARIES}")\n'
    )
    (tmp_path / "main.cpp").write_text(
        "#include <ATen/core/Tensor.h>\n#include <ATen/ops/arange.h>\n#include <ATen/ops/sum.h>\n"
        "#include <iostream>\nint main() { std::cout << at::sum(at::arange(5)).item<long>(); }\n"
    )
    run("env", "--json")
    environment = {**os.environ, **json.loads(capsys.readouterr().out)}
    for command in (["cmake", "-S", ".", "-B", "build"], ["cmake", "--build", "build"]):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run([tmp_path / "build/small"], env=environment, capture_output=True, text=True)
    assert done.stdout == "10"

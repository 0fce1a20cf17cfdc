"""What this machine has, and the build of torch that fits it."""

import stat
import sys
from pathlib import Path

import pytest

from flodl.cli.machine import amd, nvidia
from flodl.cli.machine.builds import BUILDS, TORCH, check_fit, choose, find, runs_on
from flodl.cli.machine.detection import detect
from flodl.cli.machine.hardware import Gpu, Hardware
from flodl.core.errors import SetupError


def stand_in(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A PATH with nothing on it but what the test puts there."""
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    return tmp_path / "programs"


def machine(*gpus, system="linux", processor="x86_64", driver=None):
    return Hardware(system, processor, gpus=gpus, nvidia_driver=driver)


def cuda(capability, name="a GPU", index=0):
    return Gpu(index, name, "nvidia", capability)


@pytest.mark.parametrize(
    ("hardware", "build", "reason"),
    [
        (machine(), "cpu", "no GPU was found"),
        (machine(system="windows"), "cpu", "no GPU was found"),
        (machine(processor="aarch64"), "cpu", "no GPU was found"),
        (machine(cuda("9.0"), driver="580.95.05"), "cu130", "driver 580.95.05 runs CUDA 13.0"),
        (machine(cuda("12.0"), driver="590.1"), "cu130", "runs CUDA 13.0"),
        (machine(cuda("8.9"), driver="550.54.14"), "cu126", "driver 550.54.14 runs CUDA 12.6"),
        (machine(cuda("6.1"), driver="580.95.05"), "cu126", "(6.1)"),
        (machine(cuda("7.0"), driver="580.95.05"), "cu126", "(7.0)"),
        (machine(cuda(""), driver="580.95.05"), "cu130", "runs CUDA 13.0"),
        (machine(cuda("8.0"), driver="470.10"), "cpu", "older than 525.60.13"),
        (machine(cuda("3.5"), driver="580.95.05"), "cpu", "no build of torch"),
        (machine(Gpu(0, "MI300X", "amd", "gfx942")), "rocm7.2", "MI300X (gfx942) runs ROCm 7.2"),
        (machine(Gpu(0, "RX", "amd", "gfx1100"), system="windows"), "cpu", "no build for this GPU"),
        (machine(Gpu(0, "M3", "apple"), system="darwin", processor="arm64"), "mps", "MPS"),
    ],
)
def test_the_build_fits_the_machine_and_says_why(hardware, build, reason):
    choice = choose(hardware)
    assert choice.build.name == build
    assert reason in choice.reason


def test_of_mixed_gpus_most_are_served_and_the_others_are_named():
    old, new = cuda("6.1", "old", 0), cuda("12.0", "new", 1)
    choice = choose(machine(old, new, driver="580.95.05"))
    assert choice.build.name == "cu130"
    assert choice.notes == ("GPU 0, old (6.1), cannot be used: cu130 has no code for it",)
    assert choose(machine(old, old, new, driver="580.95.05")).build.name == "cu126"


def test_an_older_driver_is_told_what_a_newer_one_would_bring():
    choice = choose(machine(cuda("9.0"), driver="550.1"))
    assert choice.notes == ("cu130 would need driver 580.65.06 or later",)
    choice = choose(machine(cuda("9.0"), driver="450.1"))
    assert choice.notes == ("update the driver, then run `fdl setup` again to use the GPU",)


def test_an_intel_mac_is_told_that_there_is_nothing_for_it():
    with pytest.raises(SetupError, match="no wheels for Macs with an Intel processor"):
        choose(machine(system="darwin"))


def test_a_build_asked_for_by_name_is_checked_against_the_machine():
    with pytest.raises(SetupError, match=r"no wheels for darwin on arm64\. There are: mps\."):
        check_fit(find("cu130"), machine(system="darwin", processor="arm64"))
    notes = check_fit(find("cu130"), machine(cuda("6.1", "GTX"), driver="550.1"))
    assert notes == (
        "GPU 0, GTX (6.1), cannot be used: cu130 has no code for it",
        "the driver 550.1 is older than 580.65.06, which CUDA 13.0 needs",
    )
    assert check_fit(find("cu126"), machine()) == (
        "no NVIDIA GPU was found; cu126 will run on the CPU alone",
    )
    assert check_fit(find("cpu"), machine(cuda("9.0"))) == ()


def test_an_unknown_build_is_met_with_the_nearest():
    assert find("rocm").name == "rocm7.2"
    with pytest.raises(SetupError, match=r"there is no build 'cu131' of torch .* Did you mean 'cu132'"):
        find("cu131")


def test_builds_have_exact_requirements_and_public_addresses():
    assert TORCH in (Path(__file__).parents[2] / "fdl").read_text()  # one version for both ways to set up
    for build in BUILDS:
        if build.name == "mps":
            assert (build.requirement(), build.index_url) == (f"torch=={TORCH}", None)
        else:
            assert build.requirement() == f"torch=={TORCH}+{build.name}"
            assert build.index_url == f"https://download.pytorch.org/whl/{build.name}"


def test_code_runs_on_its_own_major_number_and_not_on_a_number_that_merely_contains_it():
    assert runs_on("8.6", ["8.0"])
    assert not runs_on("8.0", ["8.6"])
    assert not runs_on("9.0", ["8.0"])
    assert not runs_on("2.0", ["12.0"])  # a comparison of text would say yes
    assert runs_on("13.0", ["12.0+PTX"])


def test_nvidia_smi_is_read(programs, tmp_path):
    rows = "0, NVIDIA H200, 143771, 580.95.05, 9.0\\n1, NVIDIA GB10, [N/A], 580.95.05, 12.1"
    stand_in(programs, "nvidia-smi", f"printf '{rows}\\n'")
    gpus, driver, notes = nvidia.probe(tmp_path)
    assert gpus == (
        Gpu(0, "NVIDIA H200", "nvidia", "9.0", 143771 * 1024**2),
        Gpu(1, "NVIDIA GB10", "nvidia", "12.1", None),
    )
    assert (driver, notes) == ("580.95.05", ())


def test_an_old_nvidia_smi_without_compute_capabilities_is_asked_again(programs, tmp_path):
    stand_in(programs, "nvidia-smi", 'case "$1" in *compute_cap*) exit 2;; esac; echo "0, K80, 11441, 470.1"')
    gpus, driver, notes = nvidia.probe(tmp_path)
    assert (gpus, driver, notes) == ((Gpu(0, "K80", "nvidia", "", 11441 * 1024**2),), "470.1", ())


def test_a_driver_that_does_not_answer_is_a_note_and_no_failure(programs, tmp_path):
    program = stand_in(programs, "nvidia-smi", "echo 'NVIDIA-SMI has failed' >&2; exit 9")
    gpus, driver, notes = nvidia.probe(tmp_path)
    assert (gpus, driver, notes) == ((), None, (f"{program} ended with 9: NVIDIA-SMI has failed",))


def test_a_driver_without_its_program_is_found_in_proc(programs, tmp_path):
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    )
    gpus, driver, notes = nvidia.probe(tmp_path)
    assert (gpus, driver) == ((), "580.95.05")
    assert "no nvidia-smi" in notes[0]


NVML = """
class NVMLError(Exception): pass
class Memory: total = 7
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetCudaComputeCapability(device): return 9, 0
def nvmlDeviceGetMemoryInfo(device): return Memory
def nvmlDeviceGetName(device): return "NVIDIA H200"
def nvmlSystemGetDriverVersion(): return "580.1"
"""


@pytest.mark.parametrize("works", [True, False])
def test_without_nvidia_smi_the_library_of_the_driver_is_asked(programs, tmp_path, monkeypatch, works):
    text = NVML if works else NVML.replace("nvmlInit(): pass", "nvmlInit(): raise NVMLError")
    (tmp_path / "pynvml.py").write_text(text)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    gpus, driver, notes = nvidia.probe(tmp_path)
    sys.modules.pop("pynvml")
    expected = ((Gpu(0, "NVIDIA H200", "nvidia", "9.0", 7),), "580.1") if works else ((), None)
    assert ((gpus, driver), notes) == (expected, ())


def test_the_nvidia_smi_of_wsl_is_found(programs, tmp_path):
    stand_in(tmp_path / "usr/lib/wsl/lib", "nvidia-smi", "echo '0, RTX 4090, 24564, 580.88, 8.9'")
    assert nvidia.probe(tmp_path)[0][0].name == "RTX 4090"


def test_amd_gpus_are_read_from_sys(programs, tmp_path):
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for node, target in (("0", 0), ("1", 90402), ("2", 110000)):
        (nodes / node / "mem_banks/0").mkdir(parents=True)
        (nodes / node / "name").write_text("aqua_vanjaram\n" if target else "\n")
        (nodes / node / "properties").write_text(f"cpu_cores_count 0\ngfx_target_version {target}\n")
        (nodes / node / "mem_banks/0/properties").write_text("heap_type 1\nsize_in_bytes 1000\n")
    (tmp_path / "opt/rocm/.info").mkdir(parents=True)
    (tmp_path / "opt/rocm/.info/version").write_text("7.2.0-43\n")
    first, second = amd.probe(tmp_path)
    assert first == Gpu(0, "aqua_vanjaram", "amd", "gfx942", 1000)
    assert (second.index, second.capability) == (1, "gfx1100")
    assert amd.rocm_version(tmp_path) == "7.2.0"


def test_a_machine_without_any_gpu_is_described(programs, tmp_path):
    found = detect(tmp_path)
    assert (found.gpus, found.nvidia_driver, found.rocm) == ((), None, None)
    assert found.num_threads >= 1
    assert found.ram_bytes > 0

"""Detection of GPUs and drivers with fake programs and a fake `/proc` and `/sys`."""

import stat
import sys

import pytest

from flodl.cli.machine import amd, nvidia
from flodl.cli.machine.detection import detect
from flodl.cli.machine.hardware import Gpu


def fake_program(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A PATH with only the programs of the test."""
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    return tmp_path / "programs"


def test_gpus_are_read_from_nvidia_smi(programs, tmp_path):
    rows = "0, NVIDIA H200, 143771, 580.95.05, 9.0\\n1, NVIDIA GB10, [N/A], 580.95.05, 12.1"
    fake_program(programs, "nvidia-smi", f"printf '{rows}\\n'")
    gpus, driver, notes = nvidia.probe(tmp_path)
    assert gpus == (
        Gpu(0, "NVIDIA H200", "nvidia", "9.0", 143771 * 1024**2),
        Gpu(1, "NVIDIA GB10", "nvidia", "12.1", None),
    )
    assert (driver, notes) == ("580.95.05", ())


def test_an_old_nvidia_smi_without_compute_capabilities_is_queried_again(programs, tmp_path):
    fake_program(
        programs, "nvidia-smi", 'case "$1" in *compute_cap*) exit 2;; esac; echo "0, K80, 11441, 470.1"'
    )
    gpus, driver, notes = nvidia.probe(tmp_path)
    assert (gpus, driver, notes) == ((Gpu(0, "K80", "nvidia", "", 11441 * 1024**2),), "470.1", ())


def test_a_failing_nvidia_smi_is_a_note_not_an_error(programs, tmp_path):
    program = fake_program(programs, "nvidia-smi", "echo 'NVIDIA-SMI has failed' >&2; exit 9")
    gpus, driver, notes = nvidia.probe(tmp_path)
    assert (gpus, driver, notes) == ((), None, (f"{program} exited with 9: NVIDIA-SMI has failed",))


def test_a_driver_without_nvidia_smi_is_found_in_proc(programs, tmp_path):
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    )
    gpus, driver, notes = nvidia.probe(tmp_path)
    assert (gpus, driver) == ((), "580.95.05")
    assert "nvidia-smi was not found" in notes[0]


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
def test_without_nvidia_smi_the_driver_library_is_queried(programs, tmp_path, monkeypatch, works):
    text = NVML if works else NVML.replace("nvmlInit(): pass", "nvmlInit(): raise NVMLError")
    (tmp_path / "pynvml.py").write_text(text)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    gpus, driver, notes = nvidia.probe(tmp_path)
    sys.modules.pop("pynvml")
    expected = ((Gpu(0, "NVIDIA H200", "nvidia", "9.0", 7),), "580.1") if works else ((), None)
    assert ((gpus, driver), notes) == (expected, ())


def test_the_nvidia_smi_of_wsl_is_found(programs, tmp_path):
    fake_program(tmp_path / "usr/lib/wsl/lib", "nvidia-smi", "echo '0, RTX 4090, 24564, 580.88, 8.9'")
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


def test_a_machine_without_a_gpu_is_detected(programs, tmp_path):
    found = detect(tmp_path)
    assert (found.gpus, found.nvidia_driver, found.rocm) == ((), None, None)
    assert found.num_threads >= 1
    assert found.ram_bytes > 0

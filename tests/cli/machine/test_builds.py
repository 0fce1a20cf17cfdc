"""The build of torch that fits a machine."""

from pathlib import Path

import pytest

from flodl.cli.machine.builds import BUILDS, TORCH, check_fit, choose, find_build, runs_on
from flodl.cli.machine.hardware import Gpu, Hardware
from flodl.core.errors import SetupError


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
def test_the_chosen_build_fits_the_machine_and_has_a_reason(hardware, build, reason):
    choice = choose(hardware)
    assert choice.build.name == build
    assert reason in choice.reason


def test_mixed_gpus_get_the_build_that_supports_most_and_a_note_for_the_rest():
    old, new = cuda("6.1", "old", 0), cuda("12.0", "new", 1)
    choice = choose(machine(old, new, driver="580.95.05"))
    assert choice.build.name == "cu130"
    assert choice.notes == (
        "GPU 0, old (6.1), cannot be used: cu130 does not support it",
        "a torch for all of these GPUs can be compiled: fdl libtorch build --wheel",
    )
    assert choose(machine(old, old, new, driver="580.95.05")).build.name == "cu126"


def test_an_old_driver_gets_a_note_about_newer_ones():
    choice = choose(machine(cuda("9.0"), driver="550.1"))
    assert choice.notes == ("cu130 requires driver 580.65.06 or later",)
    choice = choose(machine(cuda("9.0"), driver="450.1"))
    assert choice.notes == ("update the driver, then run `fdl setup` again to use the GPU",)


def test_an_intel_mac_has_no_build():
    with pytest.raises(SetupError, match="no wheels for Macs with an Intel processor"):
        choose(machine(system="darwin"))


def test_a_build_requested_by_name_is_checked_against_the_machine():
    with pytest.raises(SetupError, match=r"no wheels for darwin on arm64\. Available builds: mps\."):
        check_fit(find_build("cu130"), machine(system="darwin", processor="arm64"))
    notes = check_fit(find_build("cu130"), machine(cuda("6.1", "GTX"), driver="550.1"))
    assert notes == (
        "GPU 0, GTX (6.1), cannot be used: cu130 does not support it",
        "the driver 550.1 is older than 580.65.06, which CUDA 13.0 requires",
    )
    assert check_fit(find_build("cu126"), machine()) == (
        "no NVIDIA GPU was found; cu126 will run on the CPU only",
    )
    assert check_fit(find_build("cpu"), machine(cuda("9.0"))) == ()


def test_an_unknown_build_gets_a_suggestion():
    assert find_build("rocm").name == "rocm7.2"
    with pytest.raises(SetupError, match=r"there is no build 'cu131' of torch .* Did you mean 'cu132'"):
        find_build("cu131")


def test_builds_have_exact_requirements_and_public_index_urls():
    assert (
        TORCH in (Path(__file__).parents[3] / "fdl").read_text()
    )  # both ways to set up use the same version
    for build in BUILDS:
        if build.name == "mps":
            assert (build.requirement(), build.index_url) == (f"torch=={TORCH}", None)
        else:
            assert build.requirement() == f"torch=={TORCH}+{build.name}"
            assert build.index_url == f"https://download.pytorch.org/whl/{build.name}"


def test_code_runs_on_later_capabilities_with_the_same_major_number():
    assert runs_on("8.6", ["8.0"])
    assert not runs_on("8.0", ["8.6"])
    assert not runs_on("9.0", ["8.0"])
    assert not runs_on("2.0", ["12.0"])  # a comparison of strings would return True
    assert runs_on("13.0", ["12.0+PTX"])

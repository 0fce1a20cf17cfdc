"""The builds of torch, and which one fits a machine and why.

The tables apply to the version of torch that flodl is tested with. Compute capabilities and the default come
from PyTorch's release matrix, driver versions from NVIDIA's table of minor version compatibility.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flodl.core.errors import SetupError
from flodl.core.paths import suggestion

from .hardware import Gpu, Hardware

TORCH = "2.13.0"
WHEELS = "https://download.pytorch.org/whl"

_LINUX_X86, _LINUX_ARM, _WINDOWS = ("linux", "x86_64"), ("linux", "aarch64"), ("windows", "x86_64")
_GB = 1024**3


@dataclass(frozen=True)
class Build:
    """One build of torch; `name` is also the last part of the URL of its wheels."""

    name: str
    title: str
    platforms: tuple[tuple[str, str], ...]
    disk_bytes: int
    capabilities: tuple[str, ...] = ()  # compute capabilities; +PTX includes all later ones
    driver: Mapping[str, str] = field(default_factory=dict)  # system -> minimum NVIDIA driver
    cuda: str | None = None

    @property
    def index_url(self) -> str | None:
        """The index with its wheels, or None for a build on the default package index."""
        return None if self.name == "mps" else f"{WHEELS}/{self.name}"

    def requirement(self, version: str = TORCH) -> str:
        """Return the exact requirement; the part after `+` keeps pip from choosing a different build.

        >>> find_build("cu130").requirement("2.13.0")
        'torch==2.13.0+cu130'
        """
        return f"torch=={version}" if self.name == "mps" else f"torch=={version}+{self.name}"


_CUDA_PLATFORMS = (_LINUX_X86, _LINUX_ARM, _WINDOWS)
_CUDA_12_DRIVER = {"linux": "525.60.13", "windows": "528.33"}
_CUDA_13_DRIVER = {"linux": "580.65.06", "windows": "580.88"}
_CUDA_12_CAPABILITIES = ("5.0", "6.0", "7.0", "7.5", "8.0", "8.6", "9.0")
_CUDA_13_CAPABILITIES = ("7.5", "8.0", "8.6", "9.0", "10.0", "11.0", "12.0")  # 11.0: only on ARM

BUILDS = (
    Build("cpu", "CPU only", (_LINUX_X86, _LINUX_ARM, _WINDOWS), 2 * _GB),
    Build("cu126", "CUDA 12.6", _CUDA_PLATFORMS, 8 * _GB, _CUDA_12_CAPABILITIES, _CUDA_12_DRIVER, "12.6"),
    Build("cu130", "CUDA 13.0", _CUDA_PLATFORMS, 8 * _GB, _CUDA_13_CAPABILITIES, _CUDA_13_DRIVER, "13.0"),
    Build("cu132", "CUDA 13.2", _CUDA_PLATFORMS, 8 * _GB, _CUDA_13_CAPABILITIES, _CUDA_13_DRIVER, "13.2"),
    Build("rocm7.1", "ROCm 7.1", (_LINUX_X86,), 16 * _GB),
    Build("rocm7.2", "ROCm 7.2", (_LINUX_X86,), 16 * _GB),
    Build("mps", "Apple silicon with MPS", (("darwin", "arm64"),), 2 * _GB),
)
AUTOMATIC_CUDA = (
    "cu130",
    "cu126",
)  # best first; cu132 is experimental in this version and must be requested by name
AUTOMATIC_ROCM = "rocm7.2"


@dataclass(frozen=True)
class Choice:
    """The chosen build, the reason, and notes for the user."""

    build: Build
    reason: str
    notes: tuple[str, ...] = ()


def find_build(name: str) -> Build:
    """Return the build with this name; `rocm` means the newest ROCm build."""
    wanted = AUTOMATIC_ROCM if name == "rocm" else name
    known = {build.name: build for build in BUILDS}
    if wanted not in known:
        hint = suggestion(name, known, known_as="builds")
        raise SetupError(f"there is no build {name!r} of torch {TORCH}. {hint}")
    return known[wanted]


def choose(hardware: Hardware) -> Choice:
    """Return the build that fits a machine, with the reason.

    >>> gpu = Gpu(0, "NVIDIA H200", "nvidia", "9.0")
    >>> choice = choose(Hardware("linux", "x86_64", gpus=(gpu,), nvidia_driver="580.95.05"))
    >>> choice.build.name, choice.reason
    ('cu130', 'NVIDIA H200 (9.0) with driver 580.95.05 runs CUDA 13.0')
    """
    if hardware.system == "darwin":
        return _choose_apple(hardware)
    if hardware.gpus_from("nvidia"):
        return _choose_cuda(hardware)
    if hardware.gpus_from("amd"):
        return _choose_rocm(hardware)
    return Choice(_default(hardware), "no GPU was found", hardware.notes)


def check_fit(build: Build, hardware: Hardware) -> tuple[str, ...]:
    """Raise if a build has no wheels for this system; return notes about other mismatches."""
    if (hardware.system, hardware.machine) not in build.platforms:
        fitting = ", ".join(b.name for b in BUILDS if (hardware.system, hardware.machine) in b.platforms)
        raise SetupError(
            f"the build {build.name} of torch {TORCH} has no wheels for {hardware.system} on "
            f"{hardware.machine}. "
            + (f"Available builds: {fitting}." if fitting else "No build has wheels for it.")
        )
    if not build.cuda:
        return ()
    if not hardware.gpus_from("nvidia"):
        return (f"no NVIDIA GPU was found; {build.name} will run on the CPU only",)
    oldest = build.driver[hardware.system]
    notes = [_unsupported(gpu, build) for gpu in hardware.gpus_from("nvidia") if not supports(gpu, build)]
    if _is_older(hardware.nvidia_driver, oldest):
        notes.append(
            f"the driver {hardware.nvidia_driver} is older than {oldest}, which {build.title} requires"
        )
    return tuple(notes)


def supports(gpu: Gpu, build: Build) -> bool:
    """Return whether a build has kernels for a GPU; assume so if its capability is unknown."""
    return not gpu.capability or runs_on(gpu.capability, build.capabilities)


def runs_on(capability: str, compiled_for: Iterable[str]) -> bool:
    """Return whether code compiled for these capabilities runs on a GPU with that capability.

    Machine code runs on its own capability and later ones with the same major number, PTX on all later ones.

    >>> runs_on("8.9", ["8.0", "9.0"]), runs_on("6.1", ["5.0", "7.0"]), runs_on("12.1", ["9.0+PTX"])
    (True, False, True)
    """
    wanted = version_numbers(capability)
    for entry in compiled_for:
        code = version_numbers(entry.removesuffix("+PTX"))
        if code <= wanted and (code[0] == wanted[0] or entry.endswith("+PTX")):
            return True
    return False


def _choose_cuda(hardware: Hardware) -> Choice:
    gpus, driver = hardware.gpus_from("nvidia"), hardware.nvidia_driver
    candidates = [find_build(name) for name in AUTOMATIC_CUDA]
    candidates = [b for b in candidates if (hardware.system, hardware.machine) in b.platforms]
    current = [b for b in candidates if not _is_older(driver, b.driver[hardware.system])]
    if not current:
        oldest = candidates[-1].driver[hardware.system] if candidates else "any"
        reason = (
            f"the NVIDIA driver {driver} is older than {oldest}, the oldest driver that this torch supports"
        )
        advice = "update the driver, then run `fdl setup` again to use the GPU"
        return Choice(_default(hardware), reason, (*hardware.notes, advice))
    best = max(current, key=lambda build: sum(supports(gpu, build) for gpu in gpus))  # ties: the first one
    if not any(supports(gpu, best) for gpu in gpus):
        names = ", ".join(f"{gpu.name} ({gpu.capability})" for gpu in gpus)
        return Choice(_default(hardware), f"no build of torch {TORCH} supports {names}", hardware.notes)
    supported = next(gpu for gpu in gpus if supports(gpu, best))
    capability = f" ({supported.capability})" if supported.capability else ""
    reason = f"{supported.name}{capability} with driver {driver or 'unknown'} runs {best.title}"
    notes = [_unsupported(gpu, best) for gpu in gpus if not supports(gpu, best)]
    if notes:
        notes.append("a torch for all of these GPUs can be compiled: fdl libtorch build --wheel")
    if best is not candidates[0] and candidates[0] not in current:
        newer = candidates[0]
        notes.append(f"{newer.name} requires driver {newer.driver[hardware.system]} or later")
    return Choice(best, reason, (*hardware.notes, *notes))


def _choose_rocm(hardware: Hardware) -> Choice:
    gpu, build = hardware.gpus_from("amd")[0], find_build(AUTOMATIC_ROCM)
    if (hardware.system, hardware.machine) not in build.platforms:
        note = f"{gpu.name}: torch has ROCm builds only for Linux on x86_64"
        return Choice(_default(hardware), "no build for this GPU and this system", (*hardware.notes, note))
    return Choice(build, f"{gpu.name} ({gpu.capability}) runs {build.title}", hardware.notes)


def _choose_apple(hardware: Hardware) -> Choice:
    if hardware.machine != "arm64":
        raise SetupError(
            f"torch {TORCH} has no wheels for Macs with an Intel processor. Use a Mac with Apple silicon, or "
            "Linux (a container on this Mac works)."
        )
    return Choice(find_build("mps"), "a Mac with Apple silicon runs MPS", hardware.notes)


def _default(hardware: Hardware) -> Build:
    build = find_build("cpu")
    check_fit(build, hardware)
    return build


def _unsupported(gpu: Gpu, build: Build) -> str:
    return f"GPU {gpu.index}, {gpu.name} ({gpu.capability}), cannot be used: {build.name} does not support it"


def _is_older(version: str | None, oldest: str) -> bool:
    return version is not None and version_numbers(version) < version_numbers(oldest)


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparisons.

    >>> version_numbers("12.10") > version_numbers("12.9")
    True
    """
    return tuple(int(part) for part in re.findall(r"\d+", version)) or (0,)

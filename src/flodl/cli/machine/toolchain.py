"""What compiling torch needs: programs with their versions, CUDA toolkits, memory and disk."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flodl.core import environment
from flodl.core.formats import format_bytes

from .builds import version_numbers
from .hardware import Hardware, run_tool

_GB = 1024**3
DISK_BYTES = 40 * _GB  # sources with their submodules, objects and the result
BYTES_PER_JOB = 4 * _GB  # the largest CUDA files need about this much to compile
OLDEST_CMAKE = "3.27"
# The CUDA versions that compile for a compute capability: the first, and the last (None: still).
_CUDA_FOR = (
    (("5.0", "5.2", "5.3", "6.0", "6.1", "6.2", "7.0", "7.2"), "10.0", "12.9"),
    (("7.5",), "10.0", None),
    (("8.0",), "11.0", None),
    (("8.6",), "11.1", None),
    (("8.7", "8.9", "9.0"), "11.8", None),
    (("10.0", "12.0"), "12.8", None),
    (("10.3", "12.1"), "12.9", None),
    (("11.0",), "13.0", None),
)
_INSTALL = {
    "git": "install git with the package manager of the system",
    "cmake": f"pip install 'cmake>={OLDEST_CMAKE}'",
    "ninja": "pip install ninja",
    "g++": "install a C++ compiler with the package manager of the system (Debian: build-essential)",
}


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit: its compiler, its version, and the compute capabilities that it compiles for."""

    nvcc: Path
    version: str
    capabilities: tuple[str, ...]

    def lacks(self, archs: Iterable[str]) -> list[str]:
        """Return the compute capabilities that it cannot compile for."""
        return [arch for arch in archs if plain(arch) not in self.capabilities]


def plain(arch: str) -> str:
    """Return the number of a compute capability.

    >>> plain("9.0a"), plain("12.0+PTX")
    ('9.0', '12.0')
    """
    return re.sub(r"[a-z]?(\+PTX)?$", "", arch)


def find_toolkits(root: Path = Path("/")) -> list[Toolkit]:
    """Return the CUDA toolkits of this machine: that of CUDA_HOME, that on PATH, those in /usr/local."""
    home = environment.cuda_home_text()
    candidates = [Path(home) / "bin/nvcc"] if home else []
    if on_path := shutil.which("nvcc"):
        candidates.append(Path(on_path))
    folders = sorted((root / "usr/local").glob("cuda-*"), key=lambda path: version_numbers(path.name))
    candidates += [folder / "bin/nvcc" for folder in reversed(folders)]
    found: dict[str, Toolkit] = {}
    for nvcc in candidates:
        toolkit = _query(nvcc) if nvcc.is_file() else None
        if toolkit:
            found.setdefault(toolkit.version, toolkit)
    return list(found.values())


def _query(nvcc: Path) -> Toolkit | None:
    text, _ = run_tool([str(nvcc), "--version"])
    release = re.search(r"release (\d+\.\d+)", text)
    codes, _ = run_tool([str(nvcc), "--list-gpu-code"])
    names = re.findall(r"sm_(\d+)(\d)[a-z]?\b", codes)
    if release is None or not names:
        return None
    return Toolkit(nvcc, release[1], tuple(dict.fromkeys(f"{major}.{minor}" for major, minor in names)))


def cuda_versions_for(archs: Sequence[str]) -> str:
    """Return in words which CUDA versions compile for all of these capabilities.

    >>> cuda_versions_for(["6.1", "12.0"]), cuda_versions_for(["7.5", "9.0"])
    ('CUDA 12.8 to 12.9', 'CUDA 11.8 or later')
    >>> cuda_versions_for(["6.1", "11.0"])
    'no version of CUDA'
    """
    first, last = "0", ""
    for arch in archs:
        known = [(oldest, newest) for names, oldest, newest in _CUDA_FOR if plain(arch) in names]
        if not known:
            return "no known version of CUDA"
        oldest, newest = known[0]
        first = max(first, oldest, key=version_numbers)
        last = min(filter(None, (last, newest)), key=version_numbers, default="")
    if last and version_numbers(first) > version_numbers(last):
        return "no version of CUDA"
    return f"CUDA {first} to {last}" if last else f"CUDA {first} or later"


def missing_tools(hardware: Hardware) -> list[str]:
    """Return what is missing on this machine, each with a remedy."""
    if hardware.system != "linux":
        return [f"building torch is supported on Linux only, and this is {hardware.system}"]
    missing = [f"{name} was not found: {how}" for name, how in _INSTALL.items() if shutil.which(name) is None]
    if shutil.which("cmake"):
        text, _ = run_tool(["cmake", "--version"])
        found = re.search(r"version (\S+)", text)
        if found and version_numbers(found[1]) < version_numbers(OLDEST_CMAKE):
            missing.append(f"cmake {found[1]} is older than {OLDEST_CMAKE}: {_INSTALL['cmake']}")
    return missing


def missing_compiler(archs: Sequence[str], toolkits: Sequence[Toolkit]) -> str:
    """Return why no toolkit compiles for all capabilities, or an empty string if one does."""
    wanted = f"{cuda_versions_for(archs)} compiles for {', '.join(archs)}"
    if not toolkits:
        return f"nvcc was not found. Install a CUDA toolkit ({wanted}), or set CUDA_HOME to its folder"
    if choose_toolkit(archs, toolkits):
        return ""
    lacking = "; ".join(
        f"CUDA {one.version} ({one.nvcc}) does not compile for {', '.join(one.lacks(archs))}"
        for one in toolkits
    )
    return f"{lacking}. {wanted[0].upper()}{wanted[1:]}: install it, or set CUDA_HOME to its folder"


def choose_toolkit(archs: Sequence[str], toolkits: Sequence[Toolkit]) -> Toolkit | None:
    """Return the first toolkit that compiles for all of these capabilities."""
    return next((one for one in toolkits if not one.lacks(archs)), None)


def missing_disk(folder: Path) -> str:
    """Return an error if the disk of a folder is too small, or an empty string."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free >= DISK_BYTES:
        return ""
    return (
        f"{folder} has {format_bytes(free)} free, and a build needs about {format_bytes(DISK_BYTES)}: free "
        "some space, or set FLODL_HOME to a folder on a different disk"
    )


def choose_jobs(hardware: Hardware) -> tuple[int, str]:
    """Return how many files to compile at once, with the reason.

    >>> choose_jobs(Hardware("linux", "x86_64", num_threads=16, ram_bytes=32 * 1024**3))
    (8, '32.0 GB of memory, 4.0 GB per job')
    """
    threads = hardware.num_threads
    by_memory = max(hardware.ram_bytes // BYTES_PER_JOB, 1) if hardware.ram_bytes else threads
    if by_memory < threads:
        memory = f"{format_bytes(hardware.ram_bytes or 0)} of memory, {format_bytes(BYTES_PER_JOB)} per job"
        return by_memory, memory
    return threads, f"{threads} threads"

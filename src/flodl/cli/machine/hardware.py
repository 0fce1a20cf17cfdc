"""The hardware of a machine as plain data, and two functions for querying the system."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 20  # nvidia-smi hangs when a GPU has fallen off the bus


@dataclass(frozen=True)
class Gpu:
    """One GPU; `capability` is `9.0` for NVIDIA, `gfx942` for AMD, empty if unknown."""

    index: int
    name: str
    vendor: str
    capability: str = ""
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Hardware:
    """The facts about a machine that decide which build fits."""

    system: str  # linux, darwin, windows
    machine: str  # x86_64, aarch64, arm64
    cpu: str = ""
    num_threads: int = 1
    ram_bytes: int | None = None
    gpus: tuple[Gpu, ...] = ()
    nvidia_driver: str | None = None
    rocm: str | None = None
    notes: tuple[str, ...] = ()

    def gpus_from(self, vendor: str) -> tuple[Gpu, ...]:
        """Return the GPUs of one vendor."""
        return tuple(gpu for gpu in self.gpus if gpu.vendor == vendor)


def run_tool(command: Sequence[str]) -> tuple[str, str]:
    """Run a small program; return its standard output and an error message (empty on success)."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "", f"{command[0]} did not finish within {TIMEOUT_S} s"
    except OSError as error:
        return "", f"{command[0]} cannot be started: {error.strerror or error}"
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return "", f"{command[0]} exited with {done.returncode}: {lines[0] if lines else 'no output'}"
    return done.stdout, ""


def read_or_empty(path: Path) -> str:
    """Return the text of a small system file, or an empty string if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""

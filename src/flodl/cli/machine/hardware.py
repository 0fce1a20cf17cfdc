"""What a machine has, as plain data, and the two ways to ask the system about it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ANSWER_WITHIN_S = 20  # a GPU that fell off the bus lets nvidia-smi hang


@dataclass(frozen=True)
class Gpu:
    """One GPU; `capability` is `9.0` for NVIDIA, `gfx942` for AMD, empty where nobody could tell."""

    index: int
    name: str
    vendor: str
    capability: str = ""
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Hardware:
    """A machine, as far as the choice of a build depends on it."""

    system: str  # linux, darwin, windows
    machine: str  # x86_64, aarch64, arm64
    cpu: str = ""
    num_threads: int = 1
    ram_bytes: int | None = None
    gpus: tuple[Gpu, ...] = ()
    nvidia_driver: str | None = None
    rocm: str | None = None
    notes: tuple[str, ...] = ()

    def of(self, vendor: str) -> tuple[Gpu, ...]:
        """Give the GPUs of one vendor."""
        return tuple(gpu for gpu in self.gpus if gpu.vendor == vendor)


def ask(command: Sequence[str]) -> tuple[str, str]:
    """Run a small program: its standard output, and what went wrong (empty if nothing did)."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=ANSWER_WITHIN_S
        )
    except subprocess.TimeoutExpired:
        return "", f"{command[0]} gave no answer within {ANSWER_WITHIN_S} s"
    except OSError as error:
        return "", f"{command[0]} cannot be started: {error.strerror or error}"
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return "", f"{command[0]} ended with {done.returncode}: {said[0] if said else 'it says nothing'}"
    return done.stdout, ""


def read(path: Path) -> str:
    """Give the text of a small file of the system, or nothing where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""

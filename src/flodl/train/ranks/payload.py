"""What a rank needs, in one file that all ranks read."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from flodl.core import TrainError
from flodl.engine import current_flags, set_flags

# Memory that all processes share, where the system has it.
_SHARED = Path("/dev/shm")


def process_flags() -> dict[str, Any]:
    """Return the global flags of torch in this process, such as `cudnn.benchmark`."""
    mode = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    return {**current_flags(), "deterministic": mode}


def set_process_flags(flags: dict[str, Any]) -> None:
    """Set the flags of another process here. A rank has its own number of threads."""
    set_flags({**flags, "threads": torch.get_num_threads()})
    is_on, warn_only = flags["deterministic"]
    torch.use_deterministic_algorithms(is_on, warn_only=warn_only)


@dataclass
class Payload:
    """The objects of a trainer, and where its run starts."""

    model: nn.Module
    # The function that builds the optimizer, or the optimizer.
    optimizer: Callable[..., Optimizer] | Optimizer
    step_fn: Callable[..., Any]
    schedule: Any
    # Arguments of the training step and of the loader.
    step_options: dict[str, Any]
    data: dict[str, Any]
    # The state of the optimizer, of the step and of the outer optimizer.
    optimizer_state: dict[str, Any]
    step_state: dict[str, Any]
    outer_state: dict[str, Any]
    seed: int
    # The epoch of the loader in the first epoch of the run, and the samples of an epoch.
    first_epoch: int
    num_samples: int
    policy: str
    backend: str
    flags: dict[str, Any] = field(default_factory=process_flags)


_PARTS = {
    "model": "the model",
    "optimizer": "the optimizer",
    "step_fn": "the step function",
    "schedule": "the schedule",
    "data": "the training data",
}


@contextmanager
def shared_folder() -> Iterator[Path]:
    """Return a folder for files that ranks and the calling process exchange; it is removed at the end."""
    root = _SHARED if _SHARED.is_dir() and shutil.disk_usage(_SHARED).free > 1 << 30 else None
    with tempfile.TemporaryDirectory(prefix="flodl-ranks-", dir=root, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def write_payload(payload: Payload, path: Path) -> None:
    """Write a payload; an error names the part that cannot be sent to another process."""
    try:
        _save(vars(payload), path)
    except Exception as error:
        for name, what in _PARTS.items():
            if cause := _refusal(getattr(payload, name), path):
                raise TrainError(
                    f"{what} cannot be sent to other processes: {type(cause).__name__}: {cause}. Devices "
                    "train in processes of their own: create open files, locks, connections and generators "
                    "where they are used.",
                    path=name,
                ) from cause
        raise TrainError(
            f"the run cannot be sent to other processes: {type(error).__name__}: {error}."
        ) from error


def read_payload(path: Path, device: torch.device) -> Payload:
    """Read a payload in a rank. What was on a CUDA device comes to the device of the rank."""

    def place(storage: Any, location: str) -> Any:
        return storage.to(device=device) if location.startswith("cuda") and device.type != "cpu" else storage

    # Mapped memory: ranks share the data, and copy what they write to.
    found = torch.load(path, map_location=place, weights_only=False, mmap=True)
    return Payload(**found)


def read_saved(value: str | bytes) -> dict[str, Any]:
    """Read what a rank saved: a file, or its bytes from another host."""
    source = io.BytesIO(value) if isinstance(value, bytes) else value
    saved: dict[str, Any] = torch.load(source, map_location="cpu", weights_only=False)
    if isinstance(value, str):
        Path(value).unlink()
    return saved


def _save(value: Any, path: Path) -> None:
    import cloudpickle  # type: ignore[import-untyped]

    torch.save(value, path, pickle_module=cloudpickle)


def _refusal(value: Any, path: Path) -> Exception | None:
    try:
        _save(value, path)
    except Exception as error:
        return error
    return None

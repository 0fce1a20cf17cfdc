"""Find the driver for the GPUs of this machine."""

from __future__ import annotations

from . import amd, nvml
from .gpus import GpuReader


def find_gpus() -> GpuReader | None:
    """Return a function that reads every GPU, or None if no driver is available."""
    for open_reader in (nvml.open_reader, amd.open_reader):
        try:
            reader = open_reader()
        except Exception:  # missing library, old driver or missing permission
            continue
        if reader is not None:
            return reader
    return None

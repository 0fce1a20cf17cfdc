"""Whether this process is in a container."""

from __future__ import annotations

import os

MARKS = ("/.dockerenv", "/run/.containerenv")  # docker leaves the first one, podman the second


def inside_container() -> bool:
    """Say whether this process is in a container already."""
    return any(os.path.exists(mark) for mark in MARKS)

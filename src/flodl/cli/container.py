"""Detect whether this process runs in a container."""

from __future__ import annotations

import os

MARKERS = ("/.dockerenv", "/run/.containerenv")  # files of docker and podman


def inside_container() -> bool:
    """Return whether this process runs in a container."""
    return any(os.path.exists(marker) for marker in MARKERS)

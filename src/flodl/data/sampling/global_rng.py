"""Seeding of the global generators of Python, NumPy and torch."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_global_rng(key: int) -> None:
    """Seed the global generators with the key of a sample, except those of accelerators."""
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key & (2**63 - 1))

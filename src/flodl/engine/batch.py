"""Batches as the engine sees them: leaves, a structure, and a signature that a capture is made for."""

from __future__ import annotations

"""Running a micro-batch from Python: as it is written, or as torch's compiler has fused it."""

from __future__ import annotations

"""Which rank trains which sample positions of an epoch: every position is committed exactly once."""

from .epochs import Epochs
from .pool import ChunkPool, Lease, Range

__all__ = ["ChunkPool", "Epochs", "Lease", "Range"]

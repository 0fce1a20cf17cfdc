"""Access to the parts of a `Loader`, for the tests of flodl; not part of the public API."""

from __future__ import annotations

from .loader import Loader
from .loading.backend import Backend


def backend_of(loader: Loader) -> Backend:
    """Return what makes the batches of a loader."""
    return loader._backend

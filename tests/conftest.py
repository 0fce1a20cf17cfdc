"""Settings for all tests: no update checks, setuptools before distutils, and folders that are slow."""

import os
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

os.environ["FDL_NO_UPDATE_CHECK"] = "1"

# torch's compiler imports setuptools, which refuses to be imported after Python's own distutils, and looking
# for pip imports distutils. A test process does both, in any order.
with warnings.catch_warnings(), suppress(ImportError):
    warnings.simplefilter("ignore")
    import setuptools  # noqa: F401

TESTS = Path(__file__).parent
SLOW_FOLDERS = [TESTS / name for name in ("browser", "faults", "gpu")]


def pytest_collection_modifyitems(items):
    """Mark every test of a slow folder."""
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in SLOW_FOLDERS):
            item.add_marker(pytest.mark.slow)

"""Settings for all tests: no update checks, setuptools before distutils, slow folders, fuzz budget."""

import os
import random
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from .warm_python import WarmPython

os.environ["FDL_NO_UPDATE_CHECK"] = "1"

# torch's compiler imports setuptools, which refuses to be imported after Python's own distutils, and looking
# for pip imports distutils. A test process does both, in any order.
with warnings.catch_warnings(), suppress(ImportError):
    warnings.simplefilter("ignore")
    import setuptools  # noqa: F401

# A busy machine is no failure.
settings.register_profile("flodl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("flodl")

TESTS = Path(__file__).parent
SLOW_FOLDERS = [TESTS / name for name in ("browser", "faults", "fuzz", "gpu", "hf/families", "hf/files")]


UNSEEDED = 2**60  # like the seed that torch draws for itself
FUZZ_CASES = 40  # per fuzz test, unless --fuzz says otherwise


def pytest_addoption(parser):
    """Add the options of the fuzz tests."""
    parser.addoption(
        "--fuzz", type=int, default=FUZZ_CASES, help="cases per fuzz test (default: %(default)s)"
    )
    parser.addoption("--fuzz-case", type=int, default=None, help="run only this case of each fuzz test")


@pytest.fixture(autouse=True, scope="session")
def no_earlier_starts():
    """Let no test find what a test of an earlier run has compiled."""
    if "torch" in sys.modules:
        from flodl.engine.compile import earlier_starts

        earlier_starts.FOLDER = f"flodl-test-{os.getpid()}"


@pytest.fixture(scope="session")
def warm_python():
    """Runs programs that use torch, and saves the seconds that its import takes each."""
    started = WarmPython()
    yield started
    started.close()


@pytest.fixture
def fuzz(request):
    """Return a function that runs a check once per case, each with its own seeded generator.

    The note of a failure names the case; `--fuzz-case` repeats it.
    """
    only = request.config.getoption("--fuzz-case")
    cases = range(request.config.getoption("--fuzz")) if only is None else [only]

    def run(check: Callable[[random.Random], None]) -> None:
        for case in cases:
            try:
                check(random.Random(case))
            except BaseException as error:
                error.add_note(f"in fuzz case {case}; repeat it with --fuzz-case {case}")
                raise

    return run


@pytest.fixture(autouse=True)
def _without_seed():
    """Start each test like a new process, in which nobody has set a seed: loaders use seed 0."""
    if "torch" in sys.modules:
        import torch

        import flodl.core.rng

        torch.default_generator.manual_seed(UNSEEDED)
        flodl.core.rng.given_seed = None


def pytest_collection_modifyitems(items):
    """Mark every test of a slow folder."""
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in SLOW_FOLDERS):
            item.add_marker(pytest.mark.slow)

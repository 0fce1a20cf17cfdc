"""Settings for all tests: no update checks, setuptools before distutils, slow folders, fuzz budget."""

import gc
import os
import random
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from . import slow_tests
from .warm_python import WarmPython

os.environ["FDL_NO_UPDATE_CHECK"] = "1"

# torch's compiler imports setuptools, which refuses to be imported after Python's own distutils, and looking
# for pip imports distutils. A test process does both, in any order.
with warnings.catch_warnings(), suppress(ImportError):
    warnings.simplefilter("ignore")
    import setuptools  # noqa: F401

# Nothing becomes garbage before the first test; looking for it takes a third of the collection of tests.
gc.disable()

# A busy machine is no failure.
settings.register_profile("flodl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("flodl")

TESTS = Path(__file__).parent
SLOW_FOLDERS = [TESTS / name for name in ("browser", "faults", "fuzz", "gpu", "hf/families", "hf/files")]


UNSEEDED = 2**60  # like the seed that torch draws for itself
FUZZ_CASES = 40  # per fuzz test, unless --fuzz says otherwise


def pytest_addoption(parser):
    """Add the options of the fuzz tests, and one for the list of slow tests."""
    parser.addoption(
        "--fuzz", type=int, default=FUZZ_CASES, help="cases per fuzz test (default: %(default)s)"
    )
    parser.addoption("--fuzz-case", type=int, default=None, help="run only this case of each fuzz test")
    parser.addoption("--find-slow", action="store_true", help="regenerate the list of slow tests")


def pytest_configure(config):
    """Measure all tests if the list of slow ones is to be written; workers only run them."""
    if config.getoption("--find-slow") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(slow_tests.FindSlow())


@pytest.fixture(autouse=True, scope="session")
def no_earlier_starts():
    """Let no test find what a test of an earlier run has compiled."""
    if "torch" in sys.modules:
        from flodl.engine.compile import earlier_starts

        earlier_starts.FOLDER = f"flodl-test-{os.getpid()}"


@pytest.fixture(autouse=True, scope="session")
def few_full_collections():
    """Visit the whole process less often for garbage: with all tests in it, that takes 7 times longer."""
    if "torch" in sys.modules:
        from flodl.engine.device import gc_and_sync

        gc_and_sync.FULL_COLLECTION_EVERY_S *= 7


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
def _like_a_new_process():
    """Start each test like a new process: without published options, and without a seed (loaders use 0)."""
    os.environ.pop("FLODL_RESOLVED_CONFIG", None)
    if "torch" in sys.modules:
        import torch

        import flodl.core.rng

        torch.default_generator.manual_seed(UNSEEDED)
        flodl.core.rng.given_seed = None


def pytest_ignore_collect(collection_path, config):
    """Import no file for the quick selection of which it runs nothing."""
    if config.option.markexpr not in ("not slow", "not slow and not gpu"):
        return None
    if collection_path.is_dir():
        is_slow = collection_path in SLOW_FOLDERS
    else:
        is_slow = collection_path.suffix == ".py" and "\npytestmark = pytest.mark.slow\n" in (
            collection_path.read_text("utf-8")
        )
    return is_slow or None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Look for doctests in `src` only: tests have none, and looking takes seconds."""
    return [found for found in (yield) if type(found).__name__ != "DoctestModule"]


def pytest_collection_modifyitems(items):
    """Mark every test of a slow folder, and those in the list."""
    slow: dict[Path, bool] = {}
    listed = slow_tests.listed()
    for item in items:
        if item.path not in slow:
            slow[item.path] = any(item.path.is_relative_to(folder) for folder in SLOW_FOLDERS)
        if slow[item.path] or slow_tests.function_of(item.nodeid) in listed:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """Start without the tests and modules among what a garbage collection visits, which takes 0.7 s each."""
    gc.freeze()
    gc.enable()

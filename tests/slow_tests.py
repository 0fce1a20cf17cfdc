"""The tests that `--quick` skips although they have no marker `slow`: those that were slow when measured.

`slow_tests.txt` lists them. To regenerate it, on a quiet machine: `pytest -n 2 --dist loadfile --find-slow`.
"""

from collections import defaultdict
from pathlib import Path

LIST = Path(__file__).with_suffix(".txt")
LONG_S = 0.2  # the slowest case of a test


def listed() -> frozenset[str]:
    """Return the functions in the list, such as tests/train/test_resume.py::test_a_run_continues."""
    return frozenset(LIST.read_text("utf-8").split())


def function_of(nodeid: str) -> str:
    """Return the function of a test without the parameters of the case."""
    return nodeid.partition("[")[0]


class FindSlow:
    """A plugin that measures all tests, and writes those without a marker that take long to the list."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.listed = listed()

    def pytest_runtest_logreport(self, report):
        if "slow" not in report.keywords or function_of(report.nodeid) in self.listed:
            self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self):
        slow = {function_of(nodeid) for nodeid, seconds in self.seconds.items() if seconds > LONG_S}
        LIST.write_text("".join(f"{one}\n" for one in sorted(slow)), "utf-8")

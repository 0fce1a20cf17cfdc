"""`fdl test`: the checks and tests that CI runs, or a quick subset of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import click

import flodl
from flodl.core.environment import color_disabled
from flodl.core.errors import SetupError
from flodl.core.formats import format_duration

MAX_WORKERS = 8  # each worker imports torch: beyond this, memory costs more than the time saved
# Collecting tests/hf imports transformers, which alone takes many seconds in each worker.
QUICK = ["-m", "not slow and not gpu", "--ignore=tests/hf"]
FUZZ = ["tests/fuzz", "-o", "timeout=0"]  # how long it takes is up to the caller
# If more tests than this fail, running them alone would not fix the cause.
MAX_REPEATED = 5


@dataclass(frozen=True)
class Outcome:
    """The result of one stage."""

    stage: str
    code: int
    seconds: float
    note: str = ""

    def __str__(self) -> str:
        verdict = "ok" if self.code == 0 else "FAILED"
        return f"{self.stage:<8}{verdict:<8}{format_duration(self.seconds):<8}{self.note}".rstrip()


@click.command(
    "test",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--quick",
    is_flag=True,
    help="Skip slow tests, such as those that compile or use a browser.",
)
@click.option(
    "--fuzz",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run only the fuzz tests (parsers of files, manifests and requests), with N cases each.",
)
@click.argument("pytest_args", nargs=-1, type=click.UNPROCESSED)
def command(*, quick: bool, fuzz: int | None, pytest_args: tuple[str, ...]) -> int:
    """Check flodl itself: format, lint, types and the whole test suite.

    Run `fdl test --quick` after each change; it takes about three minutes on two cores.

    Run `fdl test --fuzz 10000` after a change to code that parses files or requests. The whole suite runs the
    same tests with a few cases each.

    Tests run in parallel, one file per core at a time. If at most five fail, they run again, one after
    the other: the second result counts, and the summary names tests that passed only then.

    With other arguments, only pytest runs, and receives them: `fdl test tests/graph -k loop -x`. Put --quick
    in front to skip slow tests there too.
    """
    root = checkout()
    _require("pytest", "ruff", "mypy")
    if fuzz is not None:
        pytest = [sys.executable, "-m", "pytest", *FUZZ, "--fuzz", str(fuzz), *(pytest_args or _parallel())]
        return subprocess.call(pytest, cwd=root, env=_environment())
    selection = QUICK if quick else []
    if pytest_args:
        return subprocess.call([sys.executable, "-m", "pytest", *selection, *pytest_args], cwd=root)
    outcomes = [
        _run("format", ["ruff", "format", "--check", "."], root),
        _run("lint", ["ruff", "check", "."], root),
        _run("types", ["mypy"], root),
        _run_tests(selection, root),
    ]
    click.echo("\n" + "\n".join(map(str, outcomes)))
    return int(any(outcome.code for outcome in outcomes))


def checkout() -> Path:
    """Return the root of the checkout that this flodl runs from; installed packages have no tests."""
    root = Path(flodl.__file__).resolve().parents[2]
    if (root / "pyproject.toml").is_file() and (root / "tests").is_dir():
        return root
    raise SetupError(
        f"`fdl test` checks flodl's own source, but this flodl is installed in {root} without its tests. "
        "Clone the repository and run `./fdl test` there."
    )


def _require(*modules: str) -> None:
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise SetupError(
            f"{', '.join(missing)} cannot be imported by {sys.executable}. "
            "Run `./fdl test`, which installs what it needs, or `pip install -e '.[test]'`."
        )


def _parallel() -> list[str]:
    """Distribute the test files over the cores, if there are several and pytest-xdist is installed."""
    if _cores() < 2 or find_spec("xdist") is None:
        return []
    return ["-n", str(min(_cores(), MAX_WORKERS)), "--dist", "loadfile"]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run(stage: str, words: Sequence[str], root: Path) -> Outcome:
    click.echo(click.style(f"── {stage}: {' '.join(words)}", bold=True))
    began = time.monotonic()
    # Standard output is piped through here, so that the summary can repeat the last line of pytest.
    tool = [sys.executable, "-m", *words]
    with subprocess.Popen(tool, cwd=root, env=_environment(), stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        end = b""
        while piece := os.read(child.stdout.fileno(), 65536):
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            end = (end + piece)[-400:]
    return Outcome(stage, child.wait(), time.monotonic() - began, _counts(end.decode(errors="replace")))


def _run_tests(selection: Sequence[str], root: Path) -> Outcome:
    """Run the tests in parallel, and the few that fail again, one after the other."""
    parallel = _parallel()
    outcome = _run("tests", ["pytest", *selection, *parallel], root)
    failed = _failed_tests(root)
    if outcome.code == 0 or not parallel or not 0 < len(failed) <= MAX_REPEATED:
        return outcome
    click.echo(f"{len(failed)} failed and will run again, one after the other:")
    again = _run("tests", ["pytest", *selection, "--last-failed"], root)
    passed = sorted(failed - _failed_tests(root)) if again.code in (0, 1) else []
    note = "; ".join([outcome.note, *(f"{name} failed and then passed alone" for name in passed)])
    return Outcome("tests", again.code, outcome.seconds + again.seconds, note)


def _failed_tests(root: Path) -> set[str]:
    """Return the tests that failed when they last ran, as pytest has recorded them."""
    record = root / ".pytest_cache/v/cache/lastfailed"
    return set(json.loads(record.read_text())) if record.is_file() else set()


def _counts(text: str) -> str:
    """Find pytest's last line, `=== 12 passed, 1 skipped in 3.4s ===`, and return its counts.

    >>> _counts("===== 2 failed, 31 passed in 1.20s =====")
    '2 failed, 31 passed'
    """
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    found = re.findall(r"((?:\d+ \w+(?:, )?)+) in [\d.]+s", plain)
    return found[-1] if found else ""


def _environment() -> dict[str, str]:
    """Return the environment of the tools: bytecode, colors as on this terminal, one thread per worker."""
    environment = dict(os.environ)
    # Hundreds of tests start a process, and flodl takes 1.0 s to import without bytecode, 0.45 s with it.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    # Workers that each start one thread per core slow each other down: 35 s became 13 s on two cores.
    environment.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // MAX_WORKERS)))
    if sys.stdout.isatty() and not color_disabled():
        environment.setdefault("FORCE_COLOR", "1")
        environment.setdefault("MYPY_FORCE_COLOR", "1")
        environment.setdefault("COLUMNS", str(os.get_terminal_size().columns))
    return environment

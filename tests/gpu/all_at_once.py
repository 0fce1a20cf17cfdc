"""Run the tests that need a CUDA device, several processes side by side on one device.

    python tests/gpu/all_at_once.py [--processes 12] [--seconds N] [--logs FOLDER] [pytest's arguments]

Most of them wait for a compiler, so that twelve take little longer than the longest test. Only pytest is
needed: no plugin, no settings of the project. With --seconds, the processes are interrupted after that time,
and the tests that have not run are listed; the exit code is that of the tests that have run.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# One line for each test, as soon as it is done: a process that is killed prints no summary.
PYTEST = (sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", ".", "-rfE")
PYTEST += ("-p", "no:cacheprovider", "--import-mode=importlib")
GRACE_S = 10.0  # from the interrupt to the end of a process
RESULT = re.compile(r"(.+?::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")
BAD = ("FAILED", "ERROR")


@dataclass
class Part:
    """A process, its tests and its log."""

    process: subprocess.Popen[bytes]
    names: list[str]
    log: Path
    was_interrupted: bool = False

    def lines(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines() or ["nothing was printed"]

    def results(self) -> list[tuple[str, str]]:
        """Return the tests that are done with their results; a test has two if its teardown fails."""
        return [match.groups() for line in self.lines() if (match := RESULT.match(line))]

    def failures(self) -> Iterator[str]:
        """Yield a line for each failure, with the message if the process has printed its summary."""
        told = [line for line in self.lines() if line.startswith(BAD)]
        yield from told
        for name, result in self.results():
            if result in BAD and not any(name in line for line in told):
                yield f"{result} {name}"

    @property
    def has_failed(self) -> bool:
        """Whether a test failed, or the process ended before all of its tests were done."""
        ended_early = self.process.returncode != 0 and not self.was_interrupted
        return ended_early or any(result in BAD for _, result in self.results())


def find_tests(root: Path, folder: Path, words: Sequence[str], seconds: float | None) -> list[str]:
    """Return the names of the tests, relative to the root, as pytest takes them."""
    command = [*PYTEST, "-q", "--collect-only", str(folder), *words]
    try:
        found = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        sys.exit(f"the tests were not found within {seconds:g} s, so none has run")
    names = [line for line in found.stdout.splitlines() if "::" in line and not line.startswith("ERROR")]
    # 5 says that no test was found.
    if found.returncode not in (0, 5):
        sys.exit(found.stdout + found.stderr)
    return names


def start(root: Path, names: list[str], log: Path) -> Part:
    with log.open("w") as file:
        # A group of its own: what its tests have started is killed with it.
        process = subprocess.Popen(
            [*PYTEST, "-v", "--durations=5", *names],
            cwd=root,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    return Part(process, names, log)


def wait(parts: Sequence[Part], until_s: float | None) -> None:
    """Wait for all processes. At the deadline or Ctrl-C, interrupt the others, then kill them."""
    with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        for part in parts:
            part.process.wait(None if until_s is None else max(0.0, until_s - time.monotonic()))
        return
    for part in parts:
        if part.process.poll() is None:
            part.was_interrupted = True
            part.process.send_signal(signal.SIGINT)
    killed_at_s = time.monotonic() + GRACE_S
    for part in parts:
        with suppress(subprocess.TimeoutExpired):
            part.process.wait(max(0.0, killed_at_s - time.monotonic()))
        if part.was_interrupted:
            with suppress(ProcessLookupError):
                os.killpg(part.process.pid, signal.SIGKILL)
            part.process.wait()


def by_file(names: Sequence[str], of: Collection[str]) -> Iterator[str]:
    """Yield one line for each file: its tests among `names`, or only their number if that is all of them."""
    files: dict[str, list[str]] = {}
    for name in names:
        file, _, test = name.partition("::")
        files.setdefault(file, []).append(test)
    for file, tests in files.items():
        count = sum(name.startswith(f"{file}::") for name in of)
        yield f"  {file}: {f'all {count}' if len(tests) == count else ', '.join(tests)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--processes", type=int, default=min(12, os.cpu_count() or 1))
    parser.add_argument("--seconds", type=float, help="interrupt the tests after this time")
    parser.add_argument("--logs", type=Path, help="folder for what each process prints")
    parser.add_argument("--folder", type=Path, default=ROOT / "tests" / "gpu", help="with the tests")
    options, words = parser.parse_known_args()
    started_s = time.monotonic()
    # A script in the background of a shell ignores the signal, and so would its processes.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = options.folder.resolve()
    root = ROOT if folder.is_relative_to(ROOT) else folder
    names = find_tests(root, folder, words, options.seconds)
    logs = options.logs or Path(tempfile.mkdtemp(prefix="flodl-gpu-tests-"))
    logs.mkdir(parents=True, exist_ok=True)
    # In turns, because the tests of one file take a similar time.
    shares = [share for place in range(options.processes) if (share := names[place :: options.processes])]
    parts = [start(root, share, logs / f"part-{place}.log") for place, share in enumerate(shares)]
    wait(parts, None if options.seconds is None else started_s + options.seconds)
    for part in parts:
        how = ", interrupted" if part.was_interrupted else ""
        line = f"{part.log.name}: {part.lines()[-1]} (exit code {part.process.returncode}{how})"
        print(*part.failures(), line, sep="\n")
    done = {name for part in parts for name, _ in part.results()}
    if left := [name for name in names if name not in done]:
        print(f"{len(left)} of {len(names)} tests did not run to their end:", *by_file(left, names), sep="\n")
    print(f"{len(names)} tests in {time.monotonic() - started_s:.0f} s; what they printed is in {logs}")
    sys.exit(0 if names and not any(part.has_failed for part in parts) else 1)


if __name__ == "__main__":
    main()

"""Run the tests that need a CUDA device, several processes side by side on one device.

    python tests/gpu/all_at_once.py [--processes 12] [--logs FOLDER] [pytest's arguments]

Most of them wait for a compiler, so that twelve take little longer than the longest test. Only pytest is
needed: no plugin, no settings of the project.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTEST = (sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(ROOT), "-q", "-rfE")
PYTEST += ("-p", "no:cacheprovider", "--import-mode=importlib")


def tests(words: list[str]) -> list[str]:
    """Give the names of the tests, as pytest takes them."""
    command = [*PYTEST, "--collect-only", "tests/gpu", *words]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    names = [line for line in found.stdout.splitlines() if "::" in line and not line.startswith("ERROR")]
    # 5 says that no test was found.
    if found.returncode not in (0, 5):
        sys.exit(found.stdout + found.stderr)
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--processes", type=int, default=min(12, os.cpu_count() or 1))
    parser.add_argument("--logs", type=Path, help="folder for what each process prints")
    options, words = parser.parse_known_args()
    started = time.monotonic()
    names = tests(words)
    logs = options.logs or Path(tempfile.mkdtemp(prefix="flodl-gpu-tests-"))
    logs.mkdir(parents=True, exist_ok=True)
    # One after another to each process, as those of one file take alike.
    shares = [share for place in range(options.processes) if (share := names[place :: options.processes])]
    running = []
    for place, share in enumerate(shares):
        path = logs / f"part-{place}.log"
        with path.open("w") as log:
            command = [*PYTEST, "--durations=5", *share]
            running.append((subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log), path))
    codes = [process.wait() for process, _ in running]
    for code, (_, path) in zip(codes, running):
        lines = path.read_text().splitlines() or ["nothing was printed"]
        told = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        print(*told, f"{path.name}: {lines[-1]} (exit code {code})", sep="\n")
    print(f"{len(names)} tests in {time.monotonic() - started:.0f} s; what they printed is in {logs}")
    sys.exit(0 if names and not any(codes) else 1)


if __name__ == "__main__":
    main()

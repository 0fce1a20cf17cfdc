"""The process that asks pip which versions there are: started by a command, and waited for by nobody.

    python -m flodl.cli.updates.asking

It has nowhere to print to: what it finds goes into the state file, and what fails is forgotten.
"""

from __future__ import annotations

import subprocess
import sys

from . import state
from .releases import PACKAGE, listed, newest

LIMIT_S = 30  # nobody waits, but nothing of ours should stay behind for long


def main() -> None:
    """Ask for the newest release, and keep the answer."""
    version = latest(PACKAGE)
    if version:
        file = state.state_file()
        state.update(file, latest_known={**state.load(file).latest_known, PACKAGE: version})


def latest(package: str) -> str | None:
    """Give the newest release of a package that fits this Python, or nothing if pip cannot tell."""
    pip = [sys.executable, "-P", "-m", "pip", "--no-input", "--disable-pip-version-check", "--no-color"]
    question = [*pip, "--timeout", "10", "--retries", "0", "index", "versions", package]
    silent = subprocess.DEVNULL
    try:
        done = subprocess.run(
            question, stdin=silent, stdout=subprocess.PIPE, stderr=silent, timeout=LIMIT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return newest(listed(done.stdout.decode(errors="replace"))) if done.returncode == 0 else None


if __name__ == "__main__":
    main()

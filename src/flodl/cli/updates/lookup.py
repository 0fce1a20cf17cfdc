"""The background process that looks up the newest release with pip.

    python -m flodl.cli.updates.lookup

A command starts it and does not wait for it. It prints nothing: it writes its result to the state file and
ignores failures.
"""

from __future__ import annotations

import subprocess
import sys

from . import state
from .releases import PACKAGE, newest, parse_pip_versions

LIMIT_S = 30  # nobody waits, but no process of ours should run for long


def main() -> None:
    """Look up the newest release and save it."""
    version = latest(PACKAGE)
    if version:
        file = state.state_file()
        state.update(file, latest_known={**state.load(file).latest_known, PACKAGE: version})


def latest(package: str) -> str | None:
    """Return the newest release of a package that fits this Python, or None if pip cannot find it."""
    pip = [sys.executable, "-P", "-m", "pip", "--no-input", "--disable-pip-version-check", "--no-color"]
    command = [*pip, "--timeout", "10", "--retries", "0", "index", "versions", package]
    devnull = subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, stdin=devnull, stdout=subprocess.PIPE, stderr=devnull, timeout=LIMIT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    return newest(parse_pip_versions(done.stdout.decode(errors="replace")))


if __name__ == "__main__":
    main()

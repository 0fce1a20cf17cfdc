"""Startup time of fdl: medians over whole processes, and ratios to `python -c pass`.

    python benchmarks/cli_start.py [--rounds 20] [--json results.json]

The commands take turns, so that a busy machine affects all of them equally.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "examples" / "manifest_project"
LIMITS_MS = {"fdl --help": 150, "fdl config show": 250}


def commands() -> dict[str, list[str]]:
    fdl = shutil.which("fdl", path=str(Path(sys.executable).parent)) or "fdl"
    return {
        "python -c pass": [sys.executable, "-c", "pass"],
        "python -c 'import click'": [sys.executable, "-c", "import click"],
        "fdl --help": [fdl, "--help"],
        "fdl config show": [fdl, "config", "show"],
        "fdl run --dry-run train quick": [fdl, "run", "--dry-run", "train", "quick"],
        "fdl version": [fdl, "version"],
        "one TAB": [fdl],
    }


def measure(rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the wall and CPU milliseconds of every start."""
    # As in an installed package: the first start writes the bytecode, and later starts reuse it.
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    tab = {"_FDL_COMPLETE": "bash_complete", "COMP_WORDS": "fdl train --activation ", "COMP_CWORD": "3"}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands()}
    for turn in range(rounds + 1):
        for name, command in commands().items():
            environment = {**plain, **(tab if name == "one TAB" else {})}
            began = time.perf_counter()
            child = subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=subprocess.DEVNULL)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            assert child.returncode == 0, f"{name} ended with code {child.returncode}"
            if turn:
                wall_s = time.perf_counter() - began
                times[name].append((1000 * wall_s, 1000 * (used.ru_utime + used.ru_stime)))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    times = measure(options.rounds)
    wall = {name: statistics.median(pair[0] for pair in values) for name, values in times.items()}
    processor = {name: statistics.median(pair[1] for pair in values) for name, values in times.items()}
    base = wall["python -c pass"]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{machine}, {options.rounds} rounds, load {load}")
    print(f"{'':<32}{'median':>10}{'ratio':>8}{'CPU':>12}{'limit':>9}")
    for name, median in wall.items():
        limit = f"{LIMITS_MS[name]} ms" if name in LIMITS_MS else ""
        print(f"{name:<32}{median:>7.0f} ms{median / base:>8.1f}{processor[name]:>9.0f} ms{limit:>9}")
    if options.json:
        facts = {"python": platform.python_version(), "cores": os.cpu_count(), "rounds": options.rounds}
        result = {**facts, "load": load, "wall_ms": wall, "processor_ms": processor}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

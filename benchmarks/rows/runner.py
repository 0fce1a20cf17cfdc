"""The command line of a benchmark in rows: measures the missing ones, and adds each to the JSON file."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, machine

from .clock import Clock
from .processes import Conductor, Player

QUICK_S = 300.0  # for a row with tiny models, on any machine


@dataclass(frozen=True)
class Suite:
    """The rows of a benchmark. `rows` has the limit in seconds and the function that measures each row.

    A function takes what `sizes` returns for a device, `quick` and the number of rounds, and a clock.
    """

    script: str
    name: str
    rows: Mapping[str, tuple[float, Callable[[Any, Clock], dict[str, Any]]]]
    sizes: Callable[[str, bool, int], Any]
    show: Callable[[str, dict[str, Any]], None]
    # Prints a summary of all rows that were measured.
    summarize: Callable[[dict[str, Any]], None] = lambda rows: None

    def parser(self, description: str | None) -> argparse.ArgumentParser:
        """Return a parser with the options that all suites have."""
        formatter = argparse.RawTextHelpFormatter
        parser = argparse.ArgumentParser(description=description, formatter_class=formatter)
        parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        parser.add_argument("--seconds", type=float, default=520, help="no row starts that would not fit")
        parser.add_argument("--rows", default="", help="regular expression for the names of rows")
        parser.add_argument("--rivals", default="", help="regular expression for the names of rivals")
        parser.add_argument("--rounds", type=int, default=7)
        parser.add_argument("--at-once", type=int, default=1, help="rows that are set up at the same time")
        parser.add_argument("--stagger", type=float, default=30, help="seconds between their starts, on CUDA")
        parser.add_argument("--limit", type=float, default=0, help="seconds per row, instead of the usual")
        parser.add_argument("--quick", action="store_true", help="tiny models, to try the script")
        parser.add_argument("--again", action="store_true", help="measure rows that have a result, too")
        parser.add_argument("--json", type=Path, default=RESULTS)
        parser.add_argument("--row", help=argparse.SUPPRESS)
        parser.add_argument("--rival", help=argparse.SUPPRESS)
        parser.add_argument("--turn", type=Path, help=argparse.SUPPRESS)
        parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
        return parser

    def run(self, options: argparse.Namespace) -> None:
        """Measure one row or one rival, as a process of this suite, or all rows."""
        if options.row:
            self._run_row(options.row, options)
        else:
            self._run_all(options)

    def _run_row(self, name: str, options: argparse.Namespace) -> None:
        """Measure one row, with a process for each rival, and write it to the file that the parent reads."""
        warnings.simplefilter("ignore")
        os.environ["HF_HUB_OFFLINE"] = "1"
        limit, row = self.rows[name]
        limit = QUICK_S if options.quick else options.limit or limit
        sizes = self.sizes(options.device, options.quick, options.rounds)
        if options.rival:
            row(sizes, Player(limit, rival=options.rival))
            return
        command = [*self._row_command(name, options, os.devnull), "--rival"]
        clock = Conductor(limit, command=command, turn=options.turn, rivals=options.rivals)
        try:
            found = row(sizes, clock)
        finally:
            clock.close()
        found |= {"failures": clock.failures, "machine": machine()}
        options.out.write_text(json.dumps(found))

    def _row_command(self, name: str, options: argparse.Namespace, out: str) -> list[str]:
        """Return the command that measures one row."""
        command = [sys.executable, self.script, "--row", name, "--out", out, "--device", options.device]
        command += ["--rivals", options.rivals, "--rounds", str(options.rounds)]
        command += ["--limit", str(options.limit)]
        return [*command, *["--quick"] * options.quick]

    def _run_all(self, options: argparse.Namespace) -> None:
        """Measure the missing rows, several at a time: they are set up together and measured one by one."""
        path = options.json / f"{self.name}_{options.device}.json"
        merged: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        rows = merged.setdefault("rows", {})
        path.parent.mkdir(exist_ok=True, parents=True)
        deadline = time.monotonic() + options.seconds
        # The largest first.
        names = sorted(self.rows, key=lambda name: "256" not in name)
        wanted = [n for n in names if re.search(options.rows, n) and (options.again or n not in rows)]
        while wanted and deadline - time.monotonic() > 60:
            group, wanted = wanted[: options.at_once], wanted[options.at_once :]
            with tempfile.TemporaryDirectory() as folder:
                for name, row in self._measured(group, options, Path(folder), deadline):
                    merged["machine"] = row.pop("machine")
                    rows[name] = row
                    path.write_text(json.dumps(merged, indent=2) + "\n")
                    self.show(name, row)
        self.summarize(rows)
        missing = [name for name in self.rows if name not in rows]
        print("wrote", path, "missing: " + ", ".join(missing) if missing else "complete")

    def _measured(
        self, names: Sequence[str], options: argparse.Namespace, folder: Path, deadline: float
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Set up several rows at the same time, then measure one after the other."""
        running = {}
        for index, name in enumerate(names):
            command = [*self._row_command(name, options, str(folder / f"{index}.json")), "--turn"]
            running[name] = subprocess.Popen([*command, str(folder / f"{index}.turn")])
            # Rivals need the most memory at first.
            time.sleep(options.stagger if index + 1 < len(names) and options.device == "cuda" else 0)
        try:
            while time.monotonic() < deadline and not all(
                (folder / f"{index}.turn").exists() or running[name].poll() is not None
                for index, name in enumerate(names)
            ):
                time.sleep(0.2)
            for index, name in enumerate(names):
                (folder / f"{index}.turn").unlink(missing_ok=True)
                try:
                    running[name].wait(timeout=max(1.0, deadline - time.monotonic()))
                    yield name, json.loads((folder / f"{index}.json").read_text())
                except (subprocess.SubprocessError, OSError) as error:
                    print(f"  {name} failed: {error}", flush=True)
        finally:
            for process in running.values():
                process.kill()

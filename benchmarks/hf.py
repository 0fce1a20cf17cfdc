"""Fine-tuning BERT-base and DeBERTa-v3-base in bf16: flodl and transformers, row by row.

    python benchmarks/hf.py [--seconds 520] [--rows "fine-tune MR"] [--quick --device cpu] [--again]

Every rival runs in a process of its own, so that all are compiled at the same time; then the rivals of a row
take turns. A row is added to the JSON file when it is done. A second command continues with the rows that are
missing. Weights are random,
because only the time is measured. The lengths of the sentences are real: hf_lengths.json contains the numbers
of tokens of MR and Banking77, in random order (`--write-lengths TOKENIZER --data FOLDER` makes the file).
"""

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, machine, table
from hf_rows import ROWS
from hf_rows.processes import Conductor, Player
from hf_rows.sizes import LENGTHS, Sizes

STAGGER_S = 30.0
QUICK_S = 300.0  # for a row with tiny models, on any machine


def write_lengths(tokenizer: Path, data: Path) -> None:
    """Count the tokens of both data sets."""
    from hf_cpu import sentences

    from flodl.hf import Tokenizer

    encode = Tokenizer.from_directory(tokenizer).encode
    found = {name: [len(item) for item in encode(texts)] for name, texts in sentences(data, 10**6).items()}
    lines = [f"{json.dumps(name)}: {json.dumps(lengths)}" for name, lengths in found.items()]
    LENGTHS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def run_row(name: str, options: argparse.Namespace) -> None:
    """Measure one row, with a process for each rival, and write it to the file that the parent reads."""
    warnings.simplefilter("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    limit, row = ROWS[name]
    limit = QUICK_S if options.quick else options.limit or limit
    sizes = Sizes(options.device, options.quick, options.rounds)
    if options.rival:
        row(sizes, Player(limit, rival=options.rival))
        return
    command = [*row_command(name, options, os.devnull), "--rival"]
    clock = Conductor(limit, command=command, turn=options.turn, rivals=options.rivals)
    try:
        found = row(sizes, clock)
    finally:
        clock.close()
    found |= {"failures": clock.failures, "machine": machine()}
    options.out.write_text(json.dumps(found))


def row_command(name: str, options: argparse.Namespace, out: str) -> list[str]:
    """Return the command that measures one row."""
    command = [sys.executable, __file__, "--row", name, "--out", out, "--device", options.device]
    command += ["--rivals", options.rivals, "--rounds", str(options.rounds), "--limit", str(options.limit)]
    return [*command, *["--quick"] * options.quick]


def run_all(options: argparse.Namespace) -> None:
    """Measure the missing rows, several at a time: they are set up together and measured one by one."""
    path = options.json / f"hf_{options.device}.json"
    merged: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    rows = merged.setdefault("rows", {})
    path.parent.mkdir(exist_ok=True, parents=True)
    deadline = time.monotonic() + options.seconds
    # The largest first.
    names = sorted(ROWS, key=lambda name: "256" not in name)
    wanted = [n for n in names if re.search(options.rows, n) and (options.again or n not in rows)]
    while wanted and deadline - time.monotonic() > 60:
        group, wanted = wanted[: options.at_once], wanted[options.at_once :]
        with tempfile.TemporaryDirectory() as folder:
            for name, row in measured(group, options, Path(folder), deadline):
                merged["machine"] = row.pop("machine")
                rows[name] = row
                path.write_text(json.dumps(merged, indent=2) + "\n")
                show(name, row)
    missing = [name for name in ROWS if name not in rows]
    print("wrote", path, "missing: " + ", ".join(missing) if missing else "complete")


def measured(
    names: Sequence[str], options: argparse.Namespace, folder: Path, deadline: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Set up several rows at the same time, then measure one after the other."""
    running = {}
    for index, name in enumerate(names):
        command = [*row_command(name, options, str(folder / f"{index}.json")), "--turn"]
        running[name] = subprocess.Popen([*command, str(folder / f"{index}.turn")])
        # Rivals need the most memory at first.
        time.sleep(STAGGER_S if index + 1 < len(names) and options.device == "cuda" else 0)
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


def show(name: str, row: dict[str, Any]) -> None:
    """Print the result of a row."""
    if "relative_error" in row:
        cells = [
            [kind, *(f"{value:.1e}" for value in errors.values())]
            for kind, errors in row["relative_error"].items()
        ]
        print(table([name, "logits", "gradients"], cells))
    cells = []
    for rival, result in row["rivals"].items():
        over = result.get("over_best_rival")
        cells.append(
            [
                rival,
                f"{result['ms']:.3f}",
                f"{result['jitter']:.1%}",
                f"{result['sentences_per_s']:,.0f}" if "sentences_per_s" in result else "",
                f"{over:.2f}×" if over else "",
                str(result.get("tier", "")),
                f"{result['captures']} + {result['captures_after_warm_up']}" if "captures" in result else "",
                f"{result['of_equal_lengths']:.2f}" if "of_equal_lengths" in result else "",
            ]
        )
    if cells:
        header = [name, "ms", "jitter", "sentences/s", "over best", "tier", "captures", "of equal lengths"]
        print(table(header, cells))
    for rival, reason in row["failures"].items():
        print(f"  {rival}: {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=520, help="no row starts that would not fit")
    parser.add_argument("--rows", default="", help="regular expression for the names of rows")
    parser.add_argument("--rivals", default="", help="regular expression for the names of rivals")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--at-once", type=int, default=1, help="how many rows are set up at the same time")
    parser.add_argument("--limit", type=float, default=0, help="seconds for each row, instead of the usual")
    parser.add_argument("--quick", action="store_true", help="tiny models, to try the script")
    parser.add_argument("--again", action="store_true", help="measure rows that have a result, too")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--write-lengths", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--rival", help=argparse.SUPPRESS)
    parser.add_argument("--turn", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write_lengths:
        write_lengths(options.write_lengths, options.data)
    elif options.row:
        run_row(options.row, options)
    else:
        run_all(options)


if __name__ == "__main__":
    main()

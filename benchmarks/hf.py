"""Fine-tuning BERT-base and DeBERTa-v3-base in bf16: flodl and transformers, row by row.

    python benchmarks/hf.py [--seconds 520] [--rows "fine-tune MR"] [--quick --device cpu] [--again]

Every row is measured in a process of its own with a time limit, and added to the JSON file when it is done. A
second command continues with the rows that are missing. Rivals of a row take turns. Weights are random,
because only the time is measured. The lengths of the sentences are real: hf_lengths.json contains the numbers
of tokens of MR and Banking77, in random order (`--write-lengths TOKENIZER --data FOLDER` makes the file).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, machine, table
from hf_rows import ROWS
from hf_rows.clock import Clock
from hf_rows.sizes import LENGTHS, Sizes

PREPARE_S = 280.0
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
    """Measure one row in this process and write it to the file that the parent reads."""
    warnings.simplefilter("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    limit, row = ROWS[name]
    clock = Clock(QUICK_S if options.quick else PREPARE_S if options.prepare else limit)
    clock.only_set_up = options.prepare
    found = row(Sizes(options.device, options.quick, options.rounds), clock)
    found |= {"failures": clock.failures, "machine": machine()}
    options.out.write_text(json.dumps(found))


def prepare(options: argparse.Namespace, names: Sequence[str]) -> None:
    """Set up several rows at once, without measuring, so that the cache of the compiler is full."""
    deadline = time.monotonic() + PREPARE_S
    waiting, running = list(names), list[subprocess.Popen[bytes]]()
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "4"}
    while (waiting or running) and time.monotonic() < deadline:
        running = [process for process in running if process.poll() is None]
        while waiting and len(running) < options.prepare:
            command = [*row_command(waiting.pop(0), options, os.devnull), "--prepare", "1"]
            running.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
        time.sleep(0.5)
    for process in running:
        process.kill()


def row_command(name: str, options: argparse.Namespace, out: str) -> list[str]:
    """Return the command that measures one row."""
    command = [sys.executable, __file__, "--row", name, "--out", out, "--device", options.device]
    return [*command, "--rounds", str(options.rounds), *["--quick"] * options.quick]


def run_all(options: argparse.Namespace) -> None:
    path = options.json / f"hf_{options.device}.json"
    merged: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    rows = merged.setdefault("rows", {})
    path.parent.mkdir(exist_ok=True, parents=True)
    started = time.monotonic()
    if options.prepare:
        prepare(options, [n for n in ROWS if options.rows in n and (options.again or n not in rows)])
        print(f"prepared in {time.monotonic() - started:.0f} s", flush=True)
    for name, (limit, _) in ROWS.items():
        limit = QUICK_S if options.quick else limit
        left = options.seconds - (time.monotonic() - started)
        wanted = options.rows in name and (options.again or name not in rows)
        if not wanted or left < min(limit, 60):
            continue
        print(name, flush=True)
        out = path.with_suffix(".row")
        out.unlink(missing_ok=True)
        try:
            subprocess.run(row_command(name, options, str(out)), check=True, timeout=min(limit + 20, left))
            rows[name] = json.loads(out.read_text())
        except (subprocess.SubprocessError, OSError) as error:
            print(f"  {name} failed: {error}", flush=True)
            merged.setdefault("failures", {})[name] = str(error)[:300]
            continue
        finally:
            out.unlink(missing_ok=True)
        merged["machine"] = rows[name].pop("machine")
        path.write_text(json.dumps(merged, indent=2) + "\n")
        show(name, rows[name])
    missing = [name for name in ROWS if name not in rows]
    print("wrote", path, "missing: " + ", ".join(missing) if missing else "complete")


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
    parser.add_argument("--rows", default="", help="a part of the names of the rows to measure")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prepare", type=int, default=0, help="first set up this many rows at a time")
    parser.add_argument("--quick", action="store_true", help="tiny models, to try the script")
    parser.add_argument("--again", action="store_true", help="measure rows that have a result, too")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--write-lengths", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--row", help=argparse.SUPPRESS)
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

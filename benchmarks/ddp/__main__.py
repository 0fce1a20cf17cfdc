"""The validation suite: published recipes, solo and on several ranks, over seeds, and the rivals of torch.

    python benchmarks/ddp --model mlp,lenet --policy solo,cadence,async,ddp --seeds 3 [--ranks 3] [--epochs 5]
    python benchmarks/ddp --model all --policy solo,cadence --epochs 1 --limit 4 --seeds 1     # a smoke run
    python benchmarks/ddp --report REPORT          # REPORT.md and REPORT.html from all results so far

Runs that are already in the results are not repeated, so a long grid can be trained in several sessions;
`--seconds` stops before the next run. Data is found in FLODL_DATA, or in shared/data next to the repository.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

import argparse
import json
import time
from itertools import product
from typing import Any

import torch
from harness import RESULTS, machine, table, write_results
from suite.recipes import RECIPES
from suite.report import HEADER, markdown, page, titles
from suite.rivals import missing
from suite.runs import POLICIES, run
from suite.task import OURS, Choice

from flodl.core.errors import DataFileError, TrainError


def read_runs(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())["runs"] if path.exists() else {}


def choices_of(options: argparse.Namespace) -> list[Choice]:
    """Return all runs that are asked for; seeds come last, so that every policy has the first seed early."""
    models = list(RECIPES) if options.model == "all" else options.model.split(",")
    policies = list(POLICIES) if options.policy == "all" else options.policy.split(",")
    backends = options.backend.split(",")
    shares = tuple(map(int, options.shares.split(":"))) if options.shares else (1,) * options.ranks
    if len(shares) != options.ranks:
        raise SystemExit(f"--shares has {len(shares)} numbers for {options.ranks} ranks")
    found = []
    for seed, model, policy, backend in product(range(options.seeds), models, policies, backends):
        if (policy == "solo" or policy not in OURS) and backend != backends[0]:
            continue
        epochs = options.epochs or RECIPES[model].epochs
        own = shares if policy in ("ddp-split", "ddp-join") else (1,) * options.ranks
        found.append(
            Choice(model, policy, backend, seed, options.ranks, epochs, options.device, options.limit, own)
        )
    return found


def train_all(choices: list[Choice], runs: dict[str, Any], options: argparse.Namespace) -> None:
    """Train what is missing, and write the results after every run."""
    until_s = time.monotonic() + options.seconds
    name = f"ddp_suite_{options.device.partition(':')[0]}"
    for number, choice in enumerate(choices):
        if choice.key in runs:
            continue
        if time.monotonic() > until_s:
            print(f"{len(choices) - number} runs are left: start it again")
            return
        if reason := missing(choice.policy):
            print(f"{choice.key} is left out: {reason}")
            continue
        try:
            found = run(choice)
        except (DataFileError, RuntimeError, TrainError) as error:
            print(f"{choice.key} is left out: {error}", flush=True)
            continue
        runs[choice.key] = {**found, "machine": machine()}
        write_results(name, {"runs": runs}, folder=options.json)
        print(f"{choice.key:50} {found['quality']:.4f}  {found['seconds']:7.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="logistic,mlp", help="all, or some of: " + ", ".join(RECIPES))
    parser.add_argument(
        "--policy", default="solo,cadence,async", help="all, or some of: " + ", ".join(POLICIES)
    )
    parser.add_argument("--backend", default="auto", help="auto, nccl, cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="by default those of the recipe")
    parser.add_argument("--limit", type=int, default=0, help="batches of an epoch, by default all")
    parser.add_argument("--shares", help="of ddp-split and ddp-join, for example 4:4:1; by default equal")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no run after this time")
    parser.add_argument("--json", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--report", type=Path, help="write REPORT.md and REPORT.html, and train nothing")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    runs = read_runs(options.json / f"ddp_suite_{options.device.partition(':')[0]}.json")
    if options.report is None:
        train_all(choices_of(options), runs, options)
    else:
        options.report.with_suffix(".md").write_text(markdown(runs, machine()) + "\n")
        options.report.with_suffix(".html").write_text(page(runs, machine()))
    for title, note, rows in titles(runs):
        print(f"\n{title}. {note}\n\n{table(HEADER, rows)}")


if __name__ == "__main__":
    main()

"""Three ranks of unequal speed on one machine: flodl and its rivals train the same samples.

    python benchmarks/ddp/throttled.py [--scenarios 4:4:1,drifting,equal] [--rivals ...] [--rounds 5]
    python benchmarks/ddp/throttled.py --scenarios "4:4:1 quota" --append       # keeps other scenarios
    python benchmarks/ddp/throttled.py --tune        # learning rates of each rival, with another seed

An MLP on MNIST, with the same initial weights and the same order of samples for all rivals; the weights of
each run are kept from time to time, and evaluated on the whole test set afterwards. A step takes 10 ms on
a fast rank and 40 ms on a slow one, of which almost everything is sleep: the result does not depend on the
number of cores, nor on other programs. The scenarios "4:4:1 sleep", "4:4:1 quota" and "4:4:1 nice" compute
instead. The time starts when all ranks are ready, and ends with the last update, or commit.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from comparison import print_scenario, summary
from harness import RESULTS, machine, write_results
from peers.registry import RIVALS, available, run_job
from task import Job, prepare_data
from throttle import SCENARIOS, quota_works

LEARNING_RATES = (0.025, 0.05, 0.1, 0.2, 0.4)
TUNING_SEED = 100
TARGET = 0.94


def rounds_of(
    scenario: str, rivals: list[str], options: argparse.Namespace, folder: Path
) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """Let the rivals take turns, in a different order in each round, with one seed per round.

    Yield all runs so far after each round.
    """
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in rivals}
    for turn in range(options.rounds):
        shift = turn % len(rivals)
        for name in rivals[shift:] + rivals[:shift]:
            own = Path(tempfile.mkdtemp(dir=folder))
            job = Job(
                name,
                SCENARIOS[scenario],
                seed=turn,
                folder=str(own),
                lr=RIVALS[name].lr,
                num_batches=options.batches,
                num_epochs=options.epochs,
                # Where ranks compute instead of sleeping, a step has to take some time.
                hidden=64 if SCENARIOS[scenario].kind == "pace" else 512,
            )
            found = run_job(job, target=options.target)
            runs[name].append(found)
            print(
                f"  {scenario}  round {turn}  {name:24} {found['wall_s']:7.2f} s  "
                f"accuracy {found['accuracy']:.4f}",
                flush=True,
            )
        yield runs


def tune(rivals: list[str], options: argparse.Namespace, folder: Path) -> None:
    """Print the samples to the target and the last accuracy for each rival and learning rate."""
    for name in rivals:
        for lr in LEARNING_RATES:
            job = Job(
                name,
                replace(SCENARIOS["4:4:1"], fast_ms=options.fast_ms),
                seed=TUNING_SEED,
                folder=tempfile.mkdtemp(dir=folder),
                lr=lr,
                num_batches=options.batches,
            )
            found = run_job(job, target=options.target)
            reached = [seen for _, seen, value in found["curve"] if value >= options.target]
            print(
                f"{name:24} lr {lr:<6} target after {reached[0] if reached else '—':>6} samples"
                f"  accuracy {found['accuracy']:.4f}",
                flush=True,
            )


def earlier_results(folder: Path) -> dict[str, Any]:
    """Return the results of earlier runs; those without conditions have the ones of the file."""
    path = folder / "ddp_throttled.json"
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text())
    common = {
        "rounds": found["settings"]["rounds"],
        "batches": found["settings"]["batches"],
        **found["machine"],
    }
    found["conditions"] = {name: found.get("conditions", {}).get(name, common) for name in found["scenarios"]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scenarios", default="4:4:1,drifting,equal")
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=900, help="batches of 48 samples, of all ranks")
    parser.add_argument("--epochs", type=int, default=1, help="epochs that the batches are divided into")
    parser.add_argument("--target", type=float, default=TARGET, help="accuracy of the time to a target")
    parser.add_argument("--append", action="store_true", help="keep what the results have of other scenarios")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--fast-ms", type=float, default=10.0, help="a step of a fast rank, with --tune")
    parser.add_argument("--json", type=Path, default=RESULTS, help="folder for the results")
    options = parser.parse_args()
    rivals, missing = available(options.rivals.split(","))
    for name, why in missing.items():
        print(f"{name} is left out: {why}")
    with tempfile.TemporaryDirectory() as folder:
        prepare_data(Path(folder))
        if options.tune:
            tune(rivals, options, Path(folder))
            return
        known = earlier_results(options.json) if options.append else {}
        results: dict[str, Any] = known.get("scenarios", {})
        conditions: dict[str, Any] = known.get("conditions", {})
        for scenario in options.scenarios.split(","):
            if SCENARIOS[scenario].kind == "quota" and not quota_works():
                print(f"{scenario} is left out: this user cannot limit the CPU time of processes")
                continue
            taking_part = [name for name in rivals if RIVALS[name].fits(scenario)]
            for number, runs in enumerate(rounds_of(scenario, taking_part, options, Path(folder)), start=1):
                results[scenario] = summary(runs)
                conditions[scenario] = {"rounds": number, "batches": options.batches, **machine()}
                settings = known.get("settings") or settings_of(options, rivals)
                found = {"settings": settings, "conditions": conditions, "scenarios": results}
                write_results("ddp_throttled", found, folder=options.json)
            print_scenario(scenario, results[scenario], options.target)


def settings_of(options: argparse.Namespace, rivals: list[str]) -> dict[str, Any]:
    return {
        "batches": options.batches,
        "epochs": options.epochs,
        "batch_size": 48,
        "rounds": options.rounds,
        "target": options.target,
        "fast_ms": SCENARIOS["4:4:1"].fast_ms,
        "phase_s": SCENARIOS["drifting"].phase_s,
        "anchor": Job.anchor,
        "period": Job.period,
        "learning_rates": {name: RIVALS[name].lr for name in rivals},
    }


if __name__ == "__main__":
    main()

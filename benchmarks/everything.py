"""Run the whole suite within a time limit, the most important benchmarks first.

    python benchmarks/everything.py [--device cuda] [--seconds 1500] [--json benchmarks/results]

The benchmarks run one after another, each in its own process, with a log next to the results. A benchmark
that exceeds the remaining time is stopped; the results it has written are kept.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from harness import RESULTS, table

HERE = Path(__file__).parent
JAX_MODELS = "mlp,residual_tower,feedback_fixed,gated_routing,iterative_refine,transformer"
OTHER_MODELS = "convnet,conv_autoenc,gru_seq,lstm_seq,feedback_loop"


@dataclass(frozen=True)
class Part:
    """One benchmark: the name of its log, its command line, and its time limit."""

    name: str
    words: tuple[str, ...]
    limit_s: float


def parts(device: str, results: Path) -> list[Part]:
    """Return the benchmarks to run, in order."""
    kept = ("--keep", str(results / f"train_step_{device}.json"))
    train = ("train_step.py", "--device", device, "--models")
    if device == "cpu":
        quick = ("--batches", "2", "--epochs", "1", "--rounds", "5", "--warmup", "1", "--warm-rounds", "0")
        return [
            Part("step_overhead", ("step_overhead.py",), 120),
            Part("fit_overhead", ("fit_overhead.py",), 180),
            Part("loader", ("loader.py",), 240),
            Part("checkpoint", ("checkpoint.py",), 240),
            Part("monitor_cost", ("monitor_cost.py", "--batch", "128", "--width", "256"), 400),
            Part("graph_overhead", ("graph_overhead.py",), 400),
            Part("train_step", (*train, f"{JAX_MODELS},{OTHER_MODELS}", *quick), 2400),
        ]
    return [
        Part("step_overhead", ("step_overhead.py", "--processes", "3"), 120),
        Part("resnet20", ("resnet20.py",), 300),
        Part("train_step", (*train, JAX_MODELS, "--epochs", "2"), 600),
        Part("train_step_more", (*train, OTHER_MODELS, "--epochs", "2", *kept), 600),
        Part("bert", ("bert.py",), 200),
        Part("fit_overhead", ("fit_overhead.py", "--device", device), 90),
        Part("loader", ("loader.py", "--train", "--device", device), 180),
        Part("checkpoint", ("checkpoint.py", "--megabytes", "1500", "--rounds", "5"), 120),
        Part("monitor_cost", ("monitor_cost.py",), 150),
        Part(
            "monitor_cost_cpu",
            ("monitor_cost.py", "--device", "cpu", "--batch", "128", "--width", "256"),
            150,
        ),
        Part("graph_overhead", ("graph_overhead.py",), 200),
    ]


def run(part: Part, results: Path, limit_s: float) -> str:
    """Run one part and return its outcome in words."""
    script, *words = part.words
    with (results / f"{part.name}.log").open("w") as log:
        command = [sys.executable, str(HERE / script), *words, "--json", str(results)]
        try:
            done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=limit_s)
        except subprocess.TimeoutExpired:
            return f"stopped after {limit_s:.0f} s"
    return "done" if done.returncode == 0 else f"exit code {done.returncode}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=3600.0, help="time limit for all benchmarks")
    parser.add_argument("--only", type=lambda given: given.split(","), help="names of parts")
    parser.add_argument("--json", type=Path, default=RESULTS, help="folder for the results and the logs")
    options = parser.parse_args()
    options.json.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.seconds
    rows = []
    for part in parts(options.device, options.json):
        if options.only and part.name not in options.only:
            continue
        started = time.monotonic()
        left_s = deadline - started
        outcome = (
            run(part, options.json, min(part.limit_s, left_s)) if left_s > 10 else "skipped, no time left"
        )
        rows.append([part.name, outcome, f"{time.monotonic() - started:.0f} s"])
        print(*rows[-1], sep=": ", flush=True)
    print(table(["benchmark", "outcome", "time"], rows))


if __name__ == "__main__":
    main()

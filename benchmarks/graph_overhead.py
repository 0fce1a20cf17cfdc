"""Overhead of a `Graph` over the same hand-written model: eager forward and backward, interleaved.

    python benchmarks/graph_overhead.py [--rounds 40] [--steps 3] [--tiny]

`--tiny` reduces every width to 16, so that the Python overhead dominates.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from harness import RESULTS, Timing, interleave, paired_ratio, table, write_results
from models import TIER_2, Reference, same_weights, second_tier
from torch import nn


def steps(model: nn.Module, x: torch.Tensor, y: torch.Tensor, count: int) -> Callable[[], None]:
    """Return a function that runs forward and backward passes without an optimizer."""

    def run() -> None:
        for _ in range(count):
            model.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()

    return run


def measure(reference: Reference, rounds: int, count: int, device: str) -> tuple[dict[str, Timing], float]:
    torch.manual_seed(0)
    graph, by_hand = reference.graph().to(device), reference.by_hand().to(device)
    same_weights(graph, by_hand)
    x = torch.randn(reference.x, device=device)
    y = torch.randn_like(x)
    difference = (graph(x) - by_hand(x)).abs().max().item()
    rivals = {"by hand": steps(by_hand, x, y, count), "graph": steps(graph, x, y, count)}
    return interleave(rivals, rounds=rounds), difference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=3, help="passes per timed sample")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", type=Path, default=RESULTS, help="folder for the results")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, results = [], {}
    for name, reference in TIER_2.items():
        if options.tiny:
            reference = second_tier(name, batch=4, width=16)
        timings, difference = measure(reference, options.rounds, options.steps, device)
        hand, graph = timings["by hand"], timings["graph"]
        ratio = paired_ratio(graph, hand)
        per_step = 1000 / options.steps
        results[name] = {
            "ratio": ratio,
            "ratio_of_best": graph.best_s / hand.best_s,
            "by_hand_ms": hand.median_s * per_step,
            "graph_ms": graph.median_s * per_step,
            "by_hand_jitter": hand.jitter,
            "graph_jitter": graph.jitter,
            "largest_difference": difference,
        }
        rows.append(
            [
                name,
                f"{hand.median_s * per_step:.3f} ms ± {hand.jitter:.1%}",
                f"{graph.median_s * per_step:.3f} ms ± {graph.jitter:.1%}",
                f"{ratio:.4f}",
                f"{graph.best_s / hand.best_s:.4f}",
                f"{difference:.1e}",
            ]
        )
        print(table(HEADER, rows[-1:]) if len(rows) == 1 else table(HEADER, rows[-1:]).splitlines()[-1])
    kind = f"graph_overhead{'_tiny' if options.tiny else ''}_{device}"
    settings = {"rounds": options.rounds, "steps": options.steps, "device": device}
    path = write_results(kind, {"settings": settings, "models": results}, folder=options.json)
    print(f"wrote {path}")


HEADER = ["model            ", "by hand           ", "graph             ", "ratio ", "of best", "difference"]


if __name__ == "__main__":
    main()

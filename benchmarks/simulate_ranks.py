"""Goodput of many unequal ranks that are lost and come back, simulated with the real coordinator.

    python benchmarks/simulate_ranks.py [--ranks 1000] [--seconds 3000] [--seeds 2] [--json FOLDER]

Goodput is the number of committed batches over what the present ranks could have trained without any waiting.
Nothing is trained: the speeds, the network and the losses are simulated, and the decisions are those of
`flodl.distributed`. Compared are plain data-parallel training, which meets at every step and restarts from a
checkpoint after a loss; windows with a full barrier; windows with a quorum; and windows with a quorum in
which ranks continue during the reduction. Then the decisions themselves are measured, in CPU time, and the
real supervisor (`supervisor_load.py`): with its cost, the simulator shows how many ranks it can serve.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import RESULTS, machine, table, write_results
from line_chart import Line, line_chart
from supervisor_load import measure

from flodl.distributed.cadence import CadenceSettings, ElChe
from flodl.distributed.coordination import CoordinatorSettings, MeetingSettings, SuspicionSettings
from flodl.distributed.coverage import Epochs
from flodl.distributed.simulation import Churn, Network, Outcome, cluster, simulate, simulate_ddp

HOUR_MS = 3_600_000.0
# A model of 100 million float32 weights over 10 Gbit/s; forming a process group of 1,000 ranks takes 1.2 s.
NETWORK = Network(latency_ms=0.5, num_bytes=4e8, gbit_per_s=10.0, rebuild_ms=200.0, rebuild_ms_per_rank=1.0)
FASTEST_MS, RATIO, JITTER, ANCHOR, WARM_MS = 100.0, 8.0, 0.05, 64, 120_000.0
BACK_AFTER_MS = 60_000.0
MODES = {
    "barrier": MeetingSettings(),
    "quorum": MeetingSettings(quorum=0.9),
    "ahead": MeetingSettings(quorum=0.9, max_ahead=1),
}
LABELS = {
    "ddp": "data parallel, every step",
    "barrier": "full barrier",
    "quorum": "quorum 0.9",
    "ahead": "quorum 0.9, ranks continue",
}
# Messages of a rank in a window: plan, arrival, reduction, report, commit.
NUM_MESSAGES = 5
MEAN_HOURS = (math.inf, 8.0, 4.0, 2.0, 1.0, 0.5)


def run(
    mode: str,
    num_ranks: int,
    ratio: float,
    churn: Churn,
    until_ms: float,
    seed: int,
    network: Network = NETWORK,
    anchor: int = ANCHOR,
) -> Outcome:
    """Simulate one run without an end."""
    ranks = cluster(num_ranks, fastest_ms=FASTEST_MS, ratio=ratio, jitter=JITTER)
    if mode == "ddp":
        return simulate_ddp(ranks, network=network, churn=churn, until_ms=until_ms, seed=seed)
    settings = CoordinatorSettings(
        cadence=CadenceSettings(anchor=anchor, growth=False),
        meeting=MODES[mode],
        suspicion=SuspicionSettings(first_reduce_ms=10_000.0),
        guard="none",
        start_ranks=max(1, num_ranks * 9 // 10),
    )
    return simulate(
        ranks,
        Epochs(num_samples=10**12, batch_size=1),
        settings,
        network=network,
        churn=churn,
        until_ms=until_ms,
        warm_ms=min(WARM_MS, until_ms / 4),
        seed=seed,
    )


def with_churn(options: argparse.Namespace, hang: float) -> dict[str, dict[str, float]]:
    """Return the mean goodput of each mode for each mean time between two losses of a rank, in hours."""
    found: dict[str, dict[str, float]] = {mode: {} for mode in LABELS}
    for hours in MEAN_HOURS:
        churn = Churn(hours * HOUR_MS, hang, back_after_ms=BACK_AFTER_MS)
        for mode, goodput in found.items():
            runs = [
                run(mode, options.ranks, RATIO, churn, options.seconds * 1e3, seed)
                for seed in range(options.seeds)
            ]
            goodput[f"{hours:g}"] = statistics.fmean(each.goodput for each in runs)
    return found


def without_churn(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the goodput of eight ranks by the ratio of the fastest to the slowest, over 100 Gbit/s."""
    network = replace(NETWORK, gbit_per_s=100.0)
    found: dict[str, dict[str, float]] = {mode: {} for mode in LABELS}
    for ratio in (1.0, 2.0, 4.0, 8.0):
        for mode, goodput in found.items():
            runs = [
                run(mode, 8, ratio, Churn(), 10 * options.seconds * 1e3, seed, network)
                for seed in range(options.seeds)
            ]
            goodput[f"{ratio:g}"] = statistics.fmean(each.goodput for each in runs)
    return found


def cost() -> dict[str, float]:
    """Return the CPU time of the decisions: the best of five, because other processes only add to it."""
    found = {}
    # About 1,000 windows of 8 ranks, and 20 of 1,000.
    windows_ms = {8: 50e6, 1000: 1e6}
    for num_ranks in (8, 1000):
        for mode in MODES:
            best = math.inf
            for seed in range(5):
                began = time.process_time()
                outcome = run(mode, num_ranks, RATIO, Churn(), windows_ms[num_ranks], seed)
                best = min(best, (time.process_time() - began) / outcome.num_windows)
            found[f"simulated window, {num_ranks} ranks, {LABELS[mode]}"] = best * 1e6
    found["ElChe alone, window of 8 ranks"] = elche_us()
    return found


def elche_us(num_windows: int = 2000) -> float:
    """Return the microseconds of eight reports and one decision."""
    best = math.inf
    for _ in range(5):
        elche = ElChe(CadenceSettings(anchor=ANCHOR, growth=False), ranks=list(range(8)))
        began = time.process_time()
        for window in range(num_windows):
            for rank in range(8):
                elche.report(rank, steps=10, compute_ms=100.0 + 10 * rank + window % 3)
            elche.retune(reduce_ms=5.0)
        best = min(best, (time.process_time() - began) / num_windows)
    return best * 1e6


def supervisor_limits(num_ranks: tuple[int, ...] = (1000, 2000, 4000, 8000, 16_000)) -> dict[str, Any]:
    """Return what the supervisor costs, how many ranks keep it busy all the time, and goodput before that.

    The windows of the simulation are short, about 1.6 s, so that fewer ranks are enough.
    """
    found = measure(1000, 10)
    per_window_s, beat_s = found["window_us_per_rank"] * 1e-6, found["beat_us"] * 1e-6
    saturated = {f"{window_s:g}": 1.0 / (per_window_s / window_s + beat_s) for window_s in (1, 10, 60)}
    network = replace(NETWORK, num_bytes=0.0, rebuild_ms=0.0, rebuild_ms_per_rank=0.0)
    goodput: dict[str, dict[str, float]] = {"free": {}, "measured": {}}
    for num in num_ranks:
        left = max(0.05, 1.0 - num * beat_s)
        message_ms = 1e3 * per_window_s / NUM_MESSAGES / left
        for name, ms in (("free", 0.0), ("measured", message_ms)):
            outcome = run("ahead", num, RATIO, Churn(), 20e3, 0, replace(network, message_ms=ms), anchor=2)
            goodput[name][str(num)] = outcome.goodput
    return {"measured": found, "saturated_ranks": saturated, "goodput": goodput}


def add_supervisor(path: Path) -> None:
    """Measure the supervisor, and add that to earlier results."""
    results: dict[str, Any] = json.loads(path.read_text())
    results["supervisor"] = {**supervisor_limits(), "machine": machine()}
    print_supervisor(results["supervisor"])
    path.write_text(json.dumps(results, indent=2) + "\n")


def print_supervisor(found: dict[str, Any]) -> None:
    cost = found["measured"]
    print(
        f"\nThe supervisor needs {cost['window_us_per_rank']:.0f} µs of CPU time per rank and window, and "
        f"{cost['beat_us']:.1f} µs per sign of life.\n"
    )
    rows = [[f"{window} s", f"{num:,.0f}"] for window, num in found["saturated_ranks"].items()]
    print(table(["windows of", "ranks that keep it busy all the time"], rows))
    free, measured = found["goodput"]["free"], found["goodput"]["measured"]
    rows = [[num, f"{free[num]:.1%}", f"{measured[num]:.1%}"] for num in free]
    print("\n" + table(["ranks, windows of 1.6 s", "messages cost nothing", "as measured"], rows))


def print_goodput(title: str, first: str, found: dict[str, dict[str, float]]) -> None:
    rows = [[x, *(f"{found[mode][x]:.1%}" for mode in LABELS)] for x in found["ddp"]]
    print(f"\n{title}\n\n{table([first, *LABELS.values()], rows)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=3000.0, help="simulated time of a run")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument(
        "--supervisor", action="store_true", help="measure the supervisor only, and keep the other results"
    )
    options = parser.parse_args()
    if options.supervisor:
        add_supervisor(options.json / "simulate_ranks.json")
        return
    results: dict[str, Any] = {}
    for name, hang, words in (
        ("churn_hang", 0.5, "half of the losses are silent"),
        ("churn_noticed", 0.0, "all losses are noticed within 50 ms"),
    ):
        results[name] = with_churn(options, hang)
        title = f"Goodput of {options.ranks} ranks, speeds 1:{RATIO:g}; {words}"
        print_goodput(title, "hours between two losses of a rank", results[name])
        lines = [Line(label, results[name][mode]) for mode, label in LABELS.items()]
        chart = line_chart(title, lines, x_title="mean hours between two losses of a rank", y_title="goodput")
        options.json.mkdir(parents=True, exist_ok=True)
        (options.json / f"simulate_ranks_{name}.svg").write_text(chart)
    results["speeds"] = without_churn(options)
    print_goodput("Goodput of 8 ranks without losses", "fastest over slowest", results["speeds"])
    results["cost_us"] = cost()
    rows = [[name, f"{us:.0f}", f"{1e6 / us:,.0f}"] for name, us in results["cost_us"].items()]
    print("\n" + table(["decision", "µs of CPU time", "per second"], rows))
    results["supervisor"] = supervisor_limits()
    print_supervisor(results["supervisor"])
    settings = {"ranks": options.ranks, "seconds": options.seconds, "seeds": options.seeds}
    write_results("simulate_ranks", {"settings": settings, **results}, folder=options.json)


if __name__ == "__main__":
    main()

"""A fast and a slow rank on one GPU under NVIDIA MPS: what does training together cost?

    python benchmarks/ddp/mps.py [--shares 75,25] [--rounds 5] [--seconds 6] [--policies cadence,async]

Two processes train ResNet-20 alone, at the same time and without knowing each other; their throughput is
what the GPU can do. Two ranks with the same shares of the multiprocessors train together; theirs counts
committed samples only. Both take turns: the uncoordinated processes train while the ranks wait between two
epochs. The target is 95 %.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

import argparse
import statistics
import time
from typing import Any

import torch
from comparison import interval, middle
from harness import RESULTS, table, write_results
from shared_gpu.mps import maybe_mps, wrong_shares
from shared_gpu.ranks import Timeline, epochs_of, links_of, stretch, watched
from shared_gpu.task import Task, classify, make_loader, make_model, sgd
from shared_gpu.uncoordinated import Crowd, crowd

from flodl import Trainer

MOST_IMAGES = 500_000
WARM_EPOCHS = 1
LEAST_WINDOWS = 5


class Interleaved:
    """Measures the uncoordinated processes after each epoch of the ranks; stops when the time is over."""

    def __init__(self, crowd: Crowd, seconds: float, until_s: float) -> None:
        self._crowd, self._seconds, self._until_s = crowd, seconds, until_s
        self.rates: list[list[float]] = []

    def on_epoch_end(self, trainer: Trainer) -> None:
        self.rates.append(self._crowd.measure(self._seconds))
        if time.monotonic() > self._until_s and len(self.rates) > WARM_EPOCHS + 1:
            trainer.stop("the time of the measurement is over")


def train_together(
    task: Task, policy: str, options: argparse.Namespace, num_samples: int, hook: Interleaved
) -> tuple[Timeline, dict[str, Any]]:
    """Train epochs of this many samples on two ranks."""
    policy, _, target = policy.partition("@")
    with watched(options.shares, float(target) if target else None) as timeline:
        trainer = Trainer(
            make_model(),
            classify,
            optimizer=sgd,
            devices=[task.device] * len(options.shares),
            policy=policy,  # type: ignore[arg-type]
            wire=options.wire,
            tier=task.tier,  # type: ignore[arg-type]
            precision=task.precision,  # type: ignore[arg-type]
            save_every=None,
            log_every=None,
            monitor=False,
            hooks=[hook],
        )
        loader = make_loader(task, num_samples, device=task.device)
        result = trainer.fit(loader, epochs=WARM_EPOCHS + options.rounds)
    report = result.ranks
    assert report is not None
    facts = {"syncs": report.syncs, "divergence": report.divergence, "links": links_of(timeline)}
    return timeline, facts


def compare(timeline: Timeline, hook: Interleaved, num_ranks: int, *, in_background: bool) -> dict[str, Any]:
    """Pair each epoch of the ranks with the uncoordinated measurements before and after it."""
    rounds = []
    for number, records in enumerate(epochs_of(timeline)):
        if number < WARM_EPOCHS or number >= len(hook.rates):
            continue
        alone = statistics.fmean([sum(hook.rates[number - 1]), sum(hook.rates[number])])
        whole, steady = (
            stretch(records, num_ranks, skip=skip, in_background=in_background) for skip in (0, 1)
        )
        assert whole is not None
        found = {"alone": alone, "alone_per_process": hook.rates[number], "epoch": whole.to_json()}
        found["epoch_ratio"] = whole.samples_per_s / alone
        # The first and the last commit of few windows say little: then the whole epoch counts.
        if steady is None or steady.windows < LEAST_WINDOWS:
            found |= {"steady": found["epoch"], "ratio": found["epoch_ratio"]}
        else:
            found |= {"steady": steady.to_json(), "ratio": steady.samples_per_s / alone}
        rounds.append(found)
    return {"rounds": rounds, "plans": plans_of(timeline)}


def plans_of(timeline: Timeline) -> list[list[int]]:
    """Return how many batches each rank was asked to train, window by window."""
    found: dict[tuple[int, int], dict[int, int]] = {}
    for _, record in timeline.of("plan"):
        found.setdefault((record["epoch"], record["window"]), {})[record["rank"]] = record["batches"]
    return [[each.get(rank, 0) for rank in (0, 1)] for each in found.values()]


def row_of(policy: str, found: dict[str, Any]) -> list[str]:
    rounds = found["rounds"]
    if not rounds:
        return [policy, *["—"] * 9]
    steady = [each["steady"] for each in rounds]
    ratios = [each["ratio"] for each in rounds]
    low, high = interval(ratios)
    shares = [
        " ".join(f"{statistics.median(values):.1%}" for values in zip(*[each[key] for each in steady]))
        for key in ("not_training", "waiting", "reducing")
    ]
    rate, jitter = middle([each["samples_per_s"] for each in steady])
    return [
        policy,
        f"{rate:,.0f} ±{jitter:.1%}",
        f"{statistics.median(each['alone'] for each in rounds):,.0f}",
        f"{statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]",
        f"{statistics.median(each['epoch_ratio'] for each in rounds):.3f}",
        *shares,
        f"{1000 * statistics.median(each['seconds'] / each['windows'] for each in steady):.0f}",
        str(found["plans"][-2 if len(found["plans"]) > 1 else -1]),
    ]


HEADER = ["policy", "samples/s", "alone", "ratio (steady)", "whole epoch", "not training", "waiting"]
HEADER += ["reducing", "window ms", "batches"]


def main() -> None:
    options = parse()
    task = Task(options.device, options.tier, options.batch_size, options.precision)
    until_s = time.monotonic() + options.budget
    on_gpu = options.device != "cpu"
    found: dict[str, Any] = {}
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    name = f"ddp_mps_{options.device.partition(':')[0]}"
    with maybe_mps(options.shares, wanted=on_gpu and not options.without_mps) as multiprocessors:
        settings |= {"mps": bool(multiprocessors), "multiprocessors": multiprocessors}
        with crowd(task, options.shares) as alone:
            rates = alone.measure(options.seconds)
            print(
                f"alone: {' + '.join(f'{rate:,.0f}' for rate in rates)} samples/s, {alone.facts}", flush=True
            )
            num_samples = min(MOST_IMAGES, max(8 * options.batch_size, int(sum(rates) * options.seconds)))
            for number, policy in enumerate(options.policies, 1):
                share_s = (until_s - time.monotonic()) / (len(options.policies) - number + 1)
                hook = Interleaved(alone, options.seconds, time.monotonic() + share_s)
                timeline, facts = train_together(task, policy, options, num_samples, hook)
                in_background = policy.startswith("async")
                compared = compare(timeline, hook, len(options.shares), in_background=in_background)
                found[policy] = {**compared, **facts}
                write_results(name, {"settings": settings, "policies": found}, folder=options.json)
                print(f"{policy}: {facts}", flush=True)
    print(f"\nmedians, 95 % intervals; alone: uncoordinated processes; shares {options.shares}\n")
    print(table(HEADER, [row_of(policy, each) for policy, each in found.items()]), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shares", type=numbers, default=[75, 25], help="percent of the GPU for each rank")
    parser.add_argument(
        "--policies",
        type=lambda text: text.split(","),
        default=["cadence", "async"],
        help="cadence@0.02: with this overhead_target instead of that of ElChe",
    )
    parser.add_argument("--rounds", type=int, default=5, help="epochs that count, for each policy")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of an epoch and of a measurement")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds for everything")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tier", default="captured")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--wire", default="fp32")
    parser.add_argument("--without-mps", action="store_true", help="share the GPU by time slicing")
    parser.add_argument("--smoke", action="store_true", help="a few small steps")
    parser.add_argument("--json", type=Path, default=RESULTS, help="folder for the results")
    options = parser.parse_args()
    is_shared = options.device != "cpu" and not options.without_mps
    if is_shared and (problem := wrong_shares(options.shares, options.precision)):
        parser.error(problem)
    if options.smoke:
        options.batch_size, options.seconds, options.rounds = 4, 1.5, 2
    if options.device == "cpu":
        torch.set_num_threads(1)
        options.tier = "eager"
    return options


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


if __name__ == "__main__":
    main()

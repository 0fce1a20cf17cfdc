"""Overhead of `Trainer.fit` over a hand-written loop with the same `TrainStep` and `Loader`, on a tiny model.

    python benchmarks/fit_overhead.py [--device cuda] [--rounds 30] [--steps 500]

Both train alternately, an epoch each, in one process. The hand-written loop runs before or after an epoch
of `fit`, so that garbage collection affects both equally. "watched" is a run with a run directory and a
monitor that receives every step. Epochs are timed from idle device to idle device and divided by the number
of steps.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, Timing, paired_ratio, table, timed, wait, write_results
from torch import Tensor, nn

from flodl import Loader, Monitor, Trainer, TrainStep

BATCH, WARM_EPOCHS = 32, 2


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), y)


def tiny_model(device: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).to(device)


def loader_of(steps: int, device: str) -> Loader:
    x = torch.randn(steps * BATCH, 32, device=device)
    return Loader((x, x.flip(1)), BATCH, device=device)


class Turns:
    """Times each epoch of a run and an epoch of the hand-written loop, which comes first every other time."""

    def __init__(self, by_hand: Callable[[], object]) -> None:
        self._by_hand = by_hand
        self._began_s = 0.0
        self.taken: dict[str, list[float]] = {"by hand": [], "fit": []}

    def on_epoch_start(self, epoch: int) -> None:
        if epoch % 2 == 0:
            self.taken["by hand"] += timed(self._by_hand, 1)
        wait()
        self._began_s = time.perf_counter()

    def on_epoch_end(self, epoch: int) -> None:
        wait()
        self.taken["fit"].append(time.perf_counter() - self._began_s)
        if epoch % 2 == 1:
            self.taken["by hand"] += timed(self._by_hand, 1)


def hand_written(steps: int, device: str, tier: str) -> Callable[[], object]:
    """Return a function that runs a hand-written epoch and reads the mean loss at its end."""
    model = tiny_model(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = TrainStep(model, optimizer, loss_of, tier=tier, guard="gradients")
    loader = loader_of(steps, device)

    def epoch() -> float:
        for x, y in loader:
            step(x, y)
        mean = step.means()["loss"].item()
        step.reset_means()
        return mean

    return epoch


def measured(steps: int, rounds: int, device: str, tier: str, monitor: Any) -> dict[str, Timing]:
    turns = Turns(hand_written(steps, device, tier))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            tiny_model(device),
            loss_of,
            optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3),
            tier=tier,
            device=device,
            monitor=monitor,
            checkpoint_dir=folder if monitor else None,
            save_every=None,
            hooks=[turns],
        )
        result = trainer.fit(loader_of(steps, device), epochs=rounds + WARM_EPOCHS)
    if result.report is not None and result.report.tier != tier:
        raise SystemExit(f"the step runs {result.report.tier}, not {tier}: {result.report.reason}")
    return {
        name: Timing(tuple(taken_s / steps for taken_s in taken[WARM_EPOCHS:]))
        for name, taken in turns.taken.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=500, help="steps per epoch")
    parser.add_argument("--json", type=Path, default=RESULTS, help="folder for the results")
    options = parser.parse_args()
    tier = "captured" if options.device == "cuda" else "eager"
    if options.device == "cpu":
        torch.set_num_threads(1)  # tiny tensors: threads would only wait for each other
    a_step: dict[str, Any] = {}
    settings = {"device": options.device, "tier": tier, "rounds": options.rounds, "steps": options.steps}
    results = {"settings": settings, "a_step": a_step}
    rows = []
    with Monitor(console=False) as monitor:
        for name, used_monitor in (("fit", False), ("fit, watched", monitor)):
            found = measured(options.steps, options.rounds, options.device, tier, used_monitor)
            hand, fit = found["by hand"], found["fit"]
            over_us = (fit.median_s - hand.median_s) * 1e6
            ratio = paired_ratio(fit, hand)
            a_step[name] = {
                "by_hand_us": hand.median_s * 1e6,
                "fit_us": fit.median_s * 1e6,
                "over_us": over_us,
                "ratio": ratio,
                "jitter": fit.jitter,
            }
            times = [f"{1e6 * timing.median_s:.1f}" for timing in (hand, fit)]
            rows.append([name, *times, f"{over_us:.1f}", f"{ratio:.3f}", f"{fit.jitter:.1%}"])
    header = [f"per step, {tier}", "by hand, µs", "fit, µs", "overhead, µs", "ratio", "jitter"]
    print(table(header, rows))
    print(f"wrote {write_results(f'fit_overhead_{options.device}', results, folder=options.json)}")


if __name__ == "__main__":
    main()

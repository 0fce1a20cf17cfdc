"""ResNet-20 on CIFAR-10 over seeds, alone and on two unequal ranks of one GPU: is the quality the same?

    FLODL_DATA=/path/to/data python benchmarks/ddp/quality.py [--modes solo,cadence,async] [--seeds 5]
        [--at-once 5] [--seconds 500] [--runs FOLDER]

The published recipe: 200 epochs in batches of 128, crops and flips drawn per sample, all test images. Several
runs train at the same time under MPS. When the time is over, they save; started again with the same folders,
they continue. The results of all runs so far are in one file.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

import argparse
import json
import os
import statistics
import subprocess
import time
from contextlib import ExitStack
from dataclasses import asdict
from itertools import product
from typing import Any

import torch
from harness import RESULTS, machine, table, write_results
from shared_gpu.mps import maybe_mps
from shared_gpu.ranks import watched
from shared_gpu.task import RECIPE, random_images

from flodl import Loader, Trainer

PUBLISHED = {"the paper, 164 epochs": 0.9125, "reference, solo": 0.9146, "reference, best of ranks": 0.9229}
# Mode: the policy and the outer optimizer of the ranks.
MODES: dict[str, dict[str, str]] = {
    "solo": {},
    "cadence": {"policy": "cadence"},
    "async": {"policy": "async"},
    "cadence slow momentum": {"policy": "cadence", "outer": "slow_momentum"},
    "async nesterov": {"policy": "async", "outer": "nesterov"},
}


class Deadline:
    """Saves and stops between two epochs when the time is over; counts the seconds over all starts."""

    def __init__(self, until_s: float) -> None:
        self._until_s = until_s
        self.seconds = 0.0
        self._since_s = time.monotonic()

    def on_epoch_end(self, trainer: Trainer) -> None:
        now_s = time.monotonic()
        self.seconds, self._since_s = self.seconds + now_s - self._since_s, now_s
        if now_s > self._until_s:
            trainer.stop("the time is over")

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seconds, self._since_s = state["seconds"], time.monotonic()


def load(options: argparse.Namespace) -> tuple[Any, Any]:
    if options.smoke:
        return random_images(64), random_images(32)
    return RECIPE.load()


def train_one(options: argparse.Namespace) -> None:
    """Train or continue a single run; write what is known of it."""
    mode, seed, folder = options.modes[0], options.only_seed, options.runs / key_of(options)
    train, test = load(options)
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = True
    model = RECIPE.make_model()
    batch_size = 8 if options.smoke else RECIPE.batch_size
    augment, device = [*RECIPE.augment, *RECIPE.normalize], options.device
    loader = Loader(train, batch_size, shuffle=True, seed=seed, augment=augment, device=device)
    assert RECIPE.schedule is not None
    schedule = RECIPE.schedule(options.epochs * len(loader))
    deadline = Deadline(time.monotonic() + options.seconds)
    choice: dict[str, Any] = {"device": options.device}
    if MODES[mode]:
        choice = {"devices": [options.device] * len(options.shares), **MODES[mode]}
    with ExitStack() as stack:
        if MODES[mode]:
            stack.enter_context(watched(options.shares))
        trainer = Trainer(
            model, RECIPE.loss_of, optimizer=RECIPE.optimizer, schedule=schedule, tier=options.tier,
            seed=seed, checkpoint_dir=folder, save_every=10, log_every=None, monitor=False,
            hooks=[deadline], **choice,
        )  # fmt: skip
        result = trainer.fit(loader, epochs=options.epochs)
        if result.status != "finished":
            trainer.save()
    tests = Loader(test, 500, shuffle=False, augment=[*RECIPE.normalize], device=device)
    scores = trainer.evaluate(tests)
    found = {"mode": mode, "seed": seed, "epochs": trainer.epochs, "of": options.epochs}
    found |= {"accuracy": scores["accuracy"], "loss": result.metrics["loss"], "seconds": deadline.seconds}
    found |= {"is_complete": trainer.epochs == options.epochs, "shares": options.shares, "machine": machine()}
    if result.ranks is not None:
        found |= {"syncs": result.ranks.syncs, "idle": result.ranks.idle, "link": result.ranks.link}
        found |= {
            "divergence": result.ranks.divergence,
            "ranks": [asdict(rank) for rank in result.ranks.ranks],
        }
    (folder / "quality.json").write_text(json.dumps(found))


def key_of(options: argparse.Namespace) -> str:
    return f"{options.modes[0].replace(' ', '-')}_{options.epochs}_{options.only_seed}"


def train_all(options: argparse.Namespace) -> None:
    """Start one process per run, several at a time, until all are complete or the time is over."""
    until_s = time.monotonic() + options.seconds
    waiting = [
        (mode, seed)
        for seed, mode in product(range(options.seeds), options.modes)
        if not read_runs(options).get(f"{mode}/{options.epochs} epochs/seed {seed}", {}).get("is_complete")
    ]
    running: dict[subprocess.Popen[bytes], tuple[str, int]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < options.at_once and time.monotonic() < until_s - options.margin:
                mode, seed = waiting.pop(0)
                running[start(options, mode, seed, until_s)] = (mode, seed)
            if not running:
                break
            time.sleep(0.2)
            for process in [each for each in running if each.poll() is not None]:
                mode, seed = running.pop(process)
                print(f"{mode}, seed {seed}: ended with code {process.returncode}", flush=True)
            if time.monotonic() > until_s + options.margin:
                print(f"still running, and ended: {list(running.values())}", flush=True)
                break
    finally:
        for process in running:
            process.kill()
            process.wait()


def start(options: argparse.Namespace, mode: str, seed: int, until_s: float) -> subprocess.Popen[bytes]:
    words = [
        "--modes",
        mode,
        "--only-seed",
        str(seed),
        "--epochs",
        str(options.epochs),
        "--tier",
        options.tier,
    ]
    words += ["--device", options.device, "--seconds", str(until_s - options.margin - time.monotonic())]
    words += ["--shares", ",".join(map(str, options.shares)), "--runs", str(options.runs)]
    words += ["--smoke"] if options.smoke else []
    log = (options.runs / f"{mode.replace(' ', '-')}_{seed}.log").open("ab")
    with log:
        return subprocess.Popen(
            [sys.executable, __file__, *words], stdout=log, stderr=subprocess.STDOUT, env={**os.environ}
        )


def read_runs(options: argparse.Namespace) -> dict[str, Any]:
    """Return all runs: those of the results file, and those of the folder."""
    path = options.json / f"ddp_quality_{options.device.partition(':')[0]}.json"
    runs: dict[str, Any] = json.loads(path.read_text())["runs"] if path.exists() else {}
    for each in sorted(options.runs.glob("*/quality.json")):
        found = json.loads(each.read_text())
        key = f"{found['mode']}/{found['of']} epochs/seed {found['seed']}"
        if found["epochs"] >= runs.get(key, found)["epochs"]:
            runs[key] = found
    return runs


def print_runs(runs: dict[str, Any]) -> None:
    rows = []
    for mode in MODES:
        found = [each for each in runs.values() if each["mode"] == mode and each["is_complete"]]
        partial = [each for each in runs.values() if each["mode"] == mode and not each["is_complete"]]
        if not found and not partial:
            continue
        scores = [each["accuracy"] for each in found]
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        mean = f"{statistics.fmean(scores):.2%} ±{spread:.2%}" if scores else "—"
        each_score = " ".join(f"{score:.2%}" for score in scores)
        seconds = f"{statistics.median(each['seconds'] for each in found):.0f}" if found else "—"
        open_runs = " ".join(f"{each['epochs']}:{each['accuracy']:.1%}" for each in partial)
        rows.append([mode, str(len(found)), mean, each_score, seconds, open_runs or "—"])
    print(table(["mode", "runs", "accuracy", "each", "seconds", "not complete (epochs: accuracy)"], rows))
    print(", ".join(f"{name}: {value:.2%}" for name, value in PUBLISHED.items()), flush=True)


def main() -> None:
    options = parse()
    options.runs.mkdir(parents=True, exist_ok=True)
    if options.only_seed is not None:
        train_one(options)
        return
    wanted = options.device != "cpu" and not options.without_mps
    with maybe_mps(options.shares, wanted=wanted):
        train_all(options)
    runs = read_runs(options)
    write_results(f"ddp_quality_{options.device.partition(':')[0]}", {"runs": runs}, folder=options.json)
    print_runs(runs)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--modes", type=lambda text: text.split(","), default=["solo", "cadence", "async"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only-seed", type=int, help="train a single run in this process")
    parser.add_argument("--epochs", type=int, default=RECIPE.epochs)
    parser.add_argument("--at-once", type=int, default=5, help="runs that train at the same time")
    parser.add_argument("--seconds", type=float, default=1e9, help="save and stop after this time")
    parser.add_argument("--margin", type=float, default=15.0, help="seconds of it for saving and evaluating")
    parser.add_argument(
        "--shares", type=lambda text: [int(word) for word in text.split(",")], default=[75, 25]
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tier", default="captured")
    parser.add_argument("--without-mps", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="random images, few of them")
    parser.add_argument("--runs", type=Path, default=Path("runs/ddp_quality"), help="folder of the runs")
    parser.add_argument("--json", type=Path, default=RESULTS, help="folder for the results")
    options = parser.parse_args()
    unknown = [mode for mode in options.modes if mode not in MODES]
    if unknown:
        parser.error(f"unknown modes {unknown}; known are {list(MODES)}")
    if options.device == "cpu":
        torch.set_num_threads(1)
        options.tier = "eager"
    return options


if __name__ == "__main__":
    main()

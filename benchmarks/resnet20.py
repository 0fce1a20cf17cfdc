"""ResNet-20 on CIFAR-10 with its published recipe: accuracy and time.

    FLODL_DATA=/path/to/data python benchmarks/resnet20.py [--run-dir runs/resnet20] [--updates 64000]

Runs the example of the same name on the real data. Results are written after every epoch, so that an
interrupted run keeps them; with a run directory, the next start resumes the run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, ROOT, table, write_results

from flodl import Trainer

sys.path.insert(0, str(ROOT / "examples"))
import resnet20_cifar10 as example

PUBLISHED = 0.9125


class ResultWriter:
    """Writes the results after every epoch; the seconds continue after a resume."""

    def __init__(self, settings: dict[str, Any], folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.seconds = 0.0
        self.scores: list[float] = []
        self.results: dict[str, Any] = {}
        self._since_s = time.perf_counter()

    def on_epoch_end(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        now_s = time.perf_counter()
        self.seconds, self._since_s = self.seconds + now_s - self._since_s, now_s
        self.scores.append(metrics["eval_accuracy"])
        report = trainer.train_step.report()
        reached = next((epoch for epoch, score in enumerate(self.scores, 1) if score >= PUBLISHED), None)
        self.results = {
            "epochs": len(self.scores),
            "updates": trainer.updates,
            "accuracy": self.scores[-1],
            "best_accuracy": max(self.scores),
            "published_accuracy": PUBLISHED,
            "epoch_that_reached_it": reached,
            "seconds": self.seconds,
            "step_ms": None if report.step_s is None else report.step_s * 1e3,
            "eager_step_ms": None if report.eager_step_s is None else report.eager_step_s * 1e3,
            "tier": report.tier,
            "promotion_s": report.promotion_cost_s,
        }
        found = {"settings": self.settings, "resnet20": {"run": self.results}}
        write_results(f"resnet20_{trainer.device.type}", found, folder=self.folder)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "scores": self.scores}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seconds, self.scores = state["seconds"], list(state["scores"])
        self._since_s = time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run-dir", type=Path, help="folder of the run; by default a temporary folder")
    parser.add_argument("--updates", type=int, default=example.UPDATES)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--tier", default="auto")
    parser.add_argument(
        "--random-images", action="store_true", help="train on random images, as a smoke test"
    )
    parser.add_argument("--json", type=Path, default=RESULTS, help="folder for the results")
    options = parser.parse_args()
    settings = example.Settings(
        run_dir=options.run_dir or Path(),
        updates=options.updates,
        bf16=options.bf16,
        tier=options.tier,
        random_images=options.random_images,
    )
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    name, train, test, updates = example.load(settings)
    if name != "CIFAR-10" and not options.random_images:
        raise SystemExit("the CIFAR-10 files are missing: set FLODL_DATA to their folder")
    facts = {"data": name, "updates": updates, "bf16": options.bf16}
    writer = ResultWriter(facts, options.json)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = options.run_dir or Path(folder) / "run"
        trainer = example.make_trainer(settings, updates, run_dir, hooks=[writer])
        facts["device"] = str(trainer.device)
        example.fit(trainer, train, test, updates)
    rows = [[name.replace("_", " "), str(value)] for name, value in writer.results.items()]
    print(table(["ResNet-20 on " + facts["data"], ""], rows))


if __name__ == "__main__":
    main()

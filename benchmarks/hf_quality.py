"""The same fine-tuning in flodl and in transformers: accuracy, entity F1, exact match and F1 over seeds.

    python benchmarks/hf_quality.py --checkpoint FOLDER --data FOLDER [--seconds 520] [--seeds 5] [--limit 3]

FOLDER contains all-MiniLM-L6-v2, also with weights in float16. Each (task, side, seed) is added to the JSON
file when it is done, and a second command continues with those that are missing. Both sides have the same
tokens, order of batches, optimizer, schedule and clipping, and bf16 on CUDA; the side of transformers is a
plain torch loop over its model. Heads are random, and dropout is drawn differently. flodl trains as
`Trainer.fit` does by default: on CUDA, texts are packed. The interval is 95 %, from Student's distribution.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, machine, table
from hf_tasks import NAMES, Task, open_task

import flodl
from flodl import Loader, Trainer
from flodl.hf.auto import AUTO
from flodl.hf.finetune import compute_loss, outputs
from flodl.hf.heads import Head

SIDES = ("flodl", "transformers")
WARM, DECAY, CLIP = 0.06, 0.01, 1.0
STUDENT = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


def schedule(task: Task, samples: int) -> Callable[[int], float]:
    """Return the learning rate by update: warm-up, then linear to 0."""
    total = -(-samples // task.batch) * task.epochs
    warm = max(1, round(WARM * total))

    def rate(step: int) -> float:
        return task.lr * min((step + 1) / warm, max(0.0, (total - step) / max(1, total - warm)))

    return rate


def shorten(task: Task, batches: int) -> Task:
    """Return a task with few texts and one epoch, to try the script."""
    count = batches * task.batch
    train, test = (tuple(column[:count] for column in rows) for rows in (task.train, task.test))
    return replace(task, train=train, test=test, epochs=1)


def load(task: Task, seed: int, options: argparse.Namespace) -> Any:
    """Return the encoder with a random head."""
    labels = {"labels": list(task.labels)} if task.labels else {}
    return AUTO[Head(task.head)].from_pretrained(options.checkpoint, seed=seed, dtype=torch.float32, **labels)


def in_flodl(task: Task, seed: int, options: argparse.Namespace) -> dict[str, float]:
    model = load(task, seed, options)
    train, test = model.dataset(*task.train), model.dataset(*task.test)
    rate = schedule(task, len(train))
    flodl.manual_seed(seed)
    on_cuda = options.device == "cuda"
    trainer = Trainer(
        model,
        compute_loss,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=task.lr, weight_decay=DECAY),
        schedule=rate,
        clip_norm=CLIP,
        precision="bf16" if on_cuda else "fp32",
        tier="captured" if on_cuda else "eager",
        device=options.device,
        monitor=False,
        log_every=None,
        seed=seed,
        metrics=model.metrics(test),
        outputs=outputs,
    )
    trainer.fit(train, epochs=task.epochs, batch_size=task.batch)
    found = trainer.evaluate(test, batch_size=4 * task.batch)
    return {name: found[name] for name in task.scores}


def in_transformers(task: Task, seed: int, options: argparse.Namespace) -> dict[str, float]:
    ours = load(task, seed, options)
    train, test = (ours.dataset(*rows, pack=False) for rows in (task.train, task.test))
    rate = schedule(task, len(train))
    model = reference(task, seed, options)
    on_cuda = options.device == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.lr, weight_decay=DECAY, fused=on_cuda)
    loader = Loader(train, task.batch, seed=seed, device=options.device)
    step = 0
    for _ in range(task.epochs):
        for inputs, labels in loader:
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
            optimizer.zero_grad()
            with torch.autocast(options.device, dtype=torch.bfloat16, enabled=on_cuda):
                loss = model(**inputs, **targets(task, labels)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            step += 1
    return evaluate(task, ours, model.eval(), test, options)


def reference(task: Task, seed: int, options: argparse.Namespace) -> Any:
    """Return the model of transformers, with a random head."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    auto = getattr(transformers, "AutoModel" + Head(task.head).suffix.removeprefix("Model"))
    labels = {"num_labels": len(task.labels)} if task.labels else {}
    model = auto.from_pretrained(options.checkpoint, dtype=torch.float32, local_files_only=True, **labels)
    return model.to(options.device).train()


def targets(task: Task, labels: Any) -> dict[str, Any]:
    """Return labels by the names that transformers uses."""
    if task.head == "qa":
        return {name: labels[name] for name in ("start_positions", "end_positions")}
    return {"labels": labels}


@torch.inference_mode()
def evaluate(task: Task, ours: Any, model: Any, test: Any, options: argparse.Namespace) -> dict[str, float]:
    """Score the model of transformers with the metrics that flodl's side uses, in the order of the data."""
    metrics = ours.metrics(test)
    for metric in metrics.values():
        metric.reset()
    for inputs, labels in Loader(test, 4 * task.batch, shuffle=False, device=options.device):
        with torch.autocast(options.device, dtype=torch.bfloat16, enabled=options.device == "cuda"):
            output = model(**inputs)
        found = (output.start_logits, output.end_logits) if task.head == "qa" else output.logits
        for metric in metrics.values():
            metric.update(found, labels)
    scores: dict[str, float] = {}
    for name, metric in metrics.items():
        value = metric.compute()
        scores |= (
            {f"{name}_{key}": part for key, part in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    return {name: float(scores[name]) for name in task.scores}


def summary(runs: dict[str, Any]) -> dict[str, Any]:
    """Return mean and half of the 95 % interval of each task, side and score."""
    grouped: dict[str, list[float]] = {}
    for key, run in runs.items():
        task, side, _ = key.split("/")
        for score, value in run["scores"].items():
            grouped.setdefault(f"{task}/{score}/{side}", []).append(value)
    found = {}
    for name, values in sorted(grouped.items()):
        spread = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
        half = STUDENT.get(len(values), 2.0) * spread
        found[name] = {"mean": statistics.fmean(values), "interval": half, "seeds": len(values)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--only-seed", type=int, help="one seed, so that several processes can share the work"
    )
    parser.add_argument("--seconds", type=float, default=520, help="no run starts after this time")
    parser.add_argument("--tasks", default=",".join(NAMES))
    parser.add_argument("--limit", type=int, help="use few batches, to try the script")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    path = options.json / f"hf_quality_{options.device}.json"
    path.parent.mkdir(exist_ok=True, parents=True)
    runs: dict[str, Any] = json.loads(path.read_text())["runs"] if path.exists() else {}
    started = time.monotonic()
    tasks = {name: open_task(name, options.data) for name in options.tasks.split(",")}
    if options.limit is not None:
        tasks = {name: shorten(task, options.limit) for name, task in tasks.items()}
    # All tasks with one seed first, so that an interrupted run has results for each.
    seeds = range(options.seeds) if options.only_seed is None else [options.only_seed]
    units = [(name, side, seed) for seed in seeds for name in tasks for side in SIDES]
    for name, side, seed in units:
        key = f"{name}/{side}/{seed}"
        if key in runs or time.monotonic() - started > options.seconds:
            continue
        began = time.monotonic()
        run = in_flodl if side == "flodl" else in_transformers
        scores = run(tasks[name], seed, options)
        runs[key] = {"scores": scores, "seconds": time.monotonic() - began}
        print(key, scores, f"{runs[key]['seconds']:.1f} s", flush=True)
        results = {"machine": machine(), "summary": summary(runs), "runs": runs}
        path.write_text(json.dumps(results, indent=2) + "\n")
        gc.collect()
    rows = [
        [name, f"{item['mean']:.4f} ± {item['interval']:.4f}", str(item["seeds"])]
        for name, item in summary(runs).items()
    ]
    print(table(["", "mean ± 95 %", "seeds"], rows))
    missing = sum("/".join(map(str, unit)) not in runs for unit in units)
    print(
        f"wrote {path}: {missing} of {len(units)} runs are missing" if missing else f"wrote {path}: complete"
    )


if __name__ == "__main__":
    main()

"""2,000 steps of GPT-2 on real text: is the loss of the compiled step within the seed noise of bf16 eager?

    FLODL_DATA=/path/to/data python benchmarks/gpt2_quality.py [--steps 2000] [--seeds 3] [--at-once 6]
        [--quick --device cpu]

The transformers model with its own loss and dropout, from random weights, on the words of Shakespeare; AdamW,
clipping, bf16. A side and a seed run in a process of their own, several at the same time. A seed sets the
weights, the order of the batches and the dropout. The interval is 95 %, from Student's distribution.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, table, write_results
from torch import Tensor, nn

SIDES = ("torch eager", "flodl compiled")
LR, CLIP_NORM, WARM_STEPS, BATCH, LENGTH = 3e-4, 1.0, 100, 8, 512
STUDENT = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}
# The last steps, whose mean loss is compared, and how often a loss is kept.
LAST, EVERY = 200, 20


def tokens() -> Tensor:
    """Return the text as word numbers, the most frequent words first."""
    root = Path(os.environ.get("FLODL_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
    path = root / "tinyshakespeare" / "input.txt"
    if not path.exists():
        raise SystemExit(
            f"{path} does not exist. Set FLODL_DATA to the folder that contains tinyshakespeare."
        )
    words = re.findall(r"\w+|[^\w\s]|\n", path.read_text())
    numbers = {word: at for at, (word, _) in enumerate(Counter(words).most_common())}
    return torch.tensor([numbers[word] for word in words])


def train(side: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train one model; return its losses."""
    from transformers import GPT2Config, GPT2LMHeadModel

    device = torch.device(options.device)
    text = tokens().to(device)
    torch.manual_seed(seed)
    small = {"n_embd": 32, "n_layer": 1, "n_head": 2} if options.quick else {}
    length = 32 if options.quick else LENGTH
    model = GPT2LMHeadModel(GPT2Config(**small)).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=device.type == "cuda")
    source = torch.Generator().manual_seed(seed)
    step = eager_step(model, optimizer) if side == "torch eager" else flodl_step(model, optimizer)
    losses: list[Tensor] = []
    for number in range(options.steps):
        for group in optimizer.param_groups:
            rate = LR * min(1.0, (number + 1) / WARM_STEPS)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        starts = torch.randint(len(text) - length, (BATCH, 1), generator=source).to(device)
        batch = text[starts + torch.arange(length, device=device)]
        losses.append(step(batch).detach().clone())
    found = torch.stack(losses).float().cpu()
    tier = "eager" if side == "torch eager" else step.tier  # type: ignore[attr-defined]
    return {
        "tier": tier,
        "last": float(found[-LAST:].mean()),
        "curve": found[::EVERY].tolist(),
        "finite": bool(found.isfinite().all()),
    }


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=batch, labels=batch).loss
    return loss


def eager_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    parameters = [*model.parameters()]
    device = parameters[0].device

    def step(batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16) if device.type == "cuda" else nullcontext():
            loss = loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
        optimizer.step()
        return loss

    return step


def flodl_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    from flodl import TrainStep

    precision = "bf16" if next(model.parameters()).is_cuda else "fp32"
    return TrainStep(
        model,
        optimizer,
        loss_of,
        clip_norm=CLIP_NORM,
        precision=precision,  # type: ignore[arg-type]
        tier="compiled",
    )


def main() -> None:
    options = parse()
    if options.only:
        side, seed = options.only.rsplit(",", 1)
        print(json.dumps(train(side, int(seed), options)))
        return
    jobs = [(side, seed) for seed in range(options.seeds) for side in SIDES]
    found: dict[str, dict[str, Any]] = {side: {} for side in SIDES}
    while jobs:
        now, jobs = jobs[: options.at_once], jobs[options.at_once :]
        running = [subprocess.Popen(command(*job), stdout=subprocess.PIPE, text=True) for job in now]
        for (side, seed), process in zip(now, running):
            out, _ = process.communicate()
            if process.returncode:
                print(f"{side}, seed {seed}: exit code {process.returncode}", file=sys.stderr)
                continue
            found[side][str(seed)] = json.loads(out.splitlines()[-1])
    summarize(found, options)


def command(side: str, seed: int) -> list[str]:
    return [sys.executable, __file__, *sys.argv[1:], "--only", f"{side},{seed}"]


def summarize(found: dict[str, dict[str, Any]], options: argparse.Namespace) -> None:
    """Print the mean loss of the last steps of each side with its interval, and write the results."""
    rows = []
    for side, runs in found.items():
        last = [run["last"] for run in runs.values()]
        tiers = ", ".join(sorted({run["tier"] for run in runs.values()}))
        around = "—"
        if len(last) > 1:
            half = STUDENT.get(len(last), 2.0) * statistics.stdev(last) / len(last) ** 0.5
            around = f"±{half:.4f}"
        numbers = " ".join(f"{value:.4f}" for value in last)
        rows.append([side, tiers, f"{statistics.fmean(last):.4f}" if last else "—", around, numbers])
    print(table(["side", "tier", f"loss of the last {LAST} steps", "95 %", "seeds"], rows))
    settings = {"steps": options.steps, "seeds": options.seeds, "quick": options.quick}
    write_results(
        f"gpt2_quality_{torch.device(options.device).type}",
        {"settings": settings, "sides": found},
        folder=options.json,
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=6, help="processes that share the device")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="a tiny model")
    parser.add_argument("--json", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

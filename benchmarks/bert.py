"""Fine-tuning BERT-base on sentence pairs in bf16: the transformers model, trained by every rival.

    python benchmarks/bert.py [--steps 20] [--rounds 5] [--layers 12]

The weights are random, because only the time is measured. Batches of 32 sentences of 128 tokens are already
on the device. The result is the median step time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, table, take_turns, timed, write_results
from torch import Tensor, nn

from flodl import TrainStep

Batch = tuple[Tensor, Tensor, Tensor]


def bert(device: str, layers: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=layers, num_labels=2)
    return BertForSequenceClassification(config).to(device).train()


def batches(device: str, count: int) -> list[Batch]:
    source = torch.Generator(device).manual_seed(1)

    def one() -> Batch:
        tokens = torch.randint(30_000, (32, 128), generator=source, device=device)
        labels = torch.randint(2, (32,), generator=source, device=device)
        return tokens, torch.ones_like(tokens), labels

    return [one() for _ in range(count)]


def loss_of(model: nn.Module, tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    return model(input_ids=tokens, attention_mask=mask, labels=labels).loss


def in_torch(device: str, layers: int, mode: str | None) -> Callable[[Batch], object]:
    model = bert(device, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    forward: Any = loss_of if mode is None else torch.compile(loss_of, mode=mode)

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        if mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = forward(model, *batch)
        loss.backward()
        optimizer.step()

    return step


def in_flodl(device: str, layers: int, tier: str) -> tuple[Callable[[Batch], object], TrainStep]:
    model = bert(device, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    step = TrainStep(model, optimizer, loss_of, precision="bf16", tier=tier)
    return (lambda batch: step(*batch)), step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    device, layers = options.device, options.layers
    data = batches(device, options.steps)
    steps: dict[str, TrainStep] = {}
    rivals: dict[str, Callable[[Batch], object]] = {
        "torch eager": in_torch(device, layers, None),
        "torch.compile": in_torch(device, layers, "default"),
    }
    if device == "cuda":
        rivals["compile reduce-overhead"] = in_torch(device, layers, "reduce-overhead")
    for tier in ("captured", "compiled") if device == "cuda" else ("compiled",):
        rivals[f"flodl {tier}"], steps[f"flodl {tier}"] = in_flodl(device, layers, tier)

    def epoch(step: Callable[[Batch], object]) -> Callable[[], None]:
        return lambda: [step(batch) for batch in data] and None

    epochs = {name: epoch(step) for name, step in rivals.items()}
    for run in epochs.values():
        run()
    timings = take_turns(
        {name: lambda repeats, run=run: timed(run, repeats) for name, run in epochs.items()},
        rounds=options.rounds,
    )
    base = timings["torch eager"].median_s
    rows, found = [], {}
    for name, timing in timings.items():
        ms = timing.median_s / options.steps * 1000
        note = "" if name not in steps else steps[name].report().tier
        if note and note not in name:
            print(f"{name} is on the {note} tier: {steps[name].report().reason}")
        rows.append([name, f"{ms:.2f}", f"{timing.jitter:.2%}", f"{base / timing.median_s:.2f}×", note])
        found[name] = {"ms": ms, "jitter": timing.jitter, "over_eager": base / timing.median_s, "tier": note}
    print(table(["BERT-base, bf16, 32 × 128", "ms per step", "jitter", "over eager", "tier"], rows))
    settings = {"steps": options.steps, "rounds": options.rounds, "layers": layers}
    print(
        "wrote",
        write_results(f"bert_{device}", {"settings": settings, "rivals": found}, folder=options.json),
    )


if __name__ == "__main__":
    main()

"""Fine-tuning BERT-base in bf16 on sentences of real lengths: packed in flodl, padded in transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from rows.clock import Clock, Rival, results
from torch import Tensor

from flodl import TrainStep

from .sizes import Sizes

LR = 2e-5
Batches = list[tuple[dict[str, Any], Tensor]]
MOST_CALLS = 20


def measure(sizes: Sizes, clock: Clock, *, data: str, batch: int) -> dict[str, Any]:
    """Time the same batches of sentences in every rival."""
    lengths = sizes.lengths(data)
    steps = sizes.steps(batch)
    chosen = [lengths[start : start + batch] for start in range(0, steps * batch, batch)]
    tokens = sum(map(sum, chosen))
    packed, slots = pack_batches(sizes, chosen, np.asarray(lengths))
    equal = round(tokens / steps / batch)
    even, _ = pack_batches(sizes, [[equal] * batch] * steps, np.full(len(lengths), equal))
    longest, by_32 = (pad_batches(sizes, chosen, multiple=multiple) for multiple in (1, 32))
    flodl, theirs = partial(in_flodl, sizes), partial(in_transformers, sizes)
    makers: dict[str, Callable[[], Rival]] = {
        "flodl packed, captured": partial(flodl, packed, "captured"),
        "transformers eager, longest": partial(theirs, longest, None),
        "transformers eager, multiples of 32": partial(theirs, by_32, None),
        "flodl packed, captured, equal lengths": partial(flodl, even, "captured"),
    }
    if sizes.device == "cuda":
        reduce, default = "reduce-overhead", "default"
        # In the order of importance, because the time may not suffice for all.
        makers = {
            "flodl packed, compiled": partial(flodl, packed, "compiled"),
            f"transformers {reduce}, multiples of 32": partial(theirs, by_32, reduce, dynamic=False),
            **makers,
            "flodl packed, compiled, equal lengths": partial(flodl, even, "compiled"),
            "transformers compiled, multiples of 32": partial(theirs, by_32, default, dynamic=True),
            f"transformers {reduce}, longest": partial(theirs, longest, reduce, dynamic=True),
            "transformers compiled, longest": partial(theirs, longest, default, dynamic=True),
        }
    rivals = clock.set_up(makers, reserve_s=25)
    timings = clock.measure(rivals, rounds=sizes.rounds)
    per_run = {"steps": steps, "sentences": steps * batch, "tokens": tokens}
    found = results(rivals, timings, per_run=per_run, ours="flodl")
    for name in found:
        if name.endswith("equal lengths"):
            found[name]["tokens_per_s"] = steps * batch * equal / timings[name].median_s
    for tier in ("captured", "compiled"):
        ragged, even_row = (found.get(f"flodl packed, {tier}{end}") for end in ("", ", equal lengths"))
        if ragged and even_row:
            ragged["of_equal_lengths"] = ragged["tokens_per_s"] / even_row["tokens_per_s"]
    return {
        "batch": batch,
        "steps": steps,
        "tokens_per_batch": tokens / steps,
        "padded_to_longest_per_token": sum(max(part) * len(part) for part in chosen) / tokens,
        "slots": slots,
        "rivals": found,
    }


def sentences(sizes: Sizes, lengths: Sequence[int], source: np.random.Generator) -> list[np.ndarray]:
    """Return random token ids."""
    return [source.integers(999, sizes.bert["vocab_size"], length) for length in lengths]


def pack_batches(
    sizes: Sizes, chosen: Sequence[Sequence[int]], lengths: np.ndarray
) -> tuple[Batches, list[int]]:
    """Return packed batches on the device, and the sizes of the slots that the data set has."""
    from flodl.hf.data.packed import Slots
    from flodl.hf.packing import pack

    source = np.random.default_rng(0)
    slots = Slots.choose(lengths, len(chosen[0]), 512)
    batches = []
    for part in chosen:
        rows = sentences(sizes, part, source)
        inputs = pack(rows, slots.smallest(sum(part)), token_types=[np.zeros_like(row) for row in rows])
        labels = torch.from_numpy(source.integers(0, 2, len(part)))
        batches.append((inputs, labels))
    return on_device(batches, sizes.device), [slot.tokens for slot in slots.slots]


def pad_batches(sizes: Sizes, chosen: Sequence[Sequence[int]], *, multiple: int) -> Batches:
    """Return padded batches on the device, with the same tokens."""
    source = np.random.default_rng(0)
    batches = []
    for part in chosen:
        width = -(-max(part) // multiple) * multiple
        ids = np.zeros((len(part), width), np.int64)
        for row, tokens in enumerate(sentences(sizes, part, source)):
            ids[row, : len(tokens)] = tokens
        mask = (np.arange(width) < np.asarray(part)[:, None]).astype(np.int64)
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        labels = torch.from_numpy(source.integers(0, 2, len(part)))
        batches.append(({name: torch.from_numpy(value) for name, value in inputs.items()}, labels))
    return on_device(batches, sizes.device)


def on_device(batches: Batches, device: str) -> Batches:
    return [
        (
            {
                name: value.to(device) if isinstance(value, Tensor) else value
                for name, value in inputs.items()
            },
            labels.to(device),
        )
        for inputs, labels in batches
    ]


def first_of_each_shape(batches: Batches) -> Batches:
    """Return one batch of each shape."""
    found = {inputs["input_ids"].shape: (inputs, labels) for inputs, labels in reversed(batches)}
    return list(found.values())


def in_flodl(sizes: Sizes, batches: Batches, tier: str) -> Rival:
    """The graph with `TrainStep`, warmed up on every slot."""
    from flodl.hf import AutoModelForSequenceClassification

    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config({"model_type": "bert", **sizes.bert})
    step = train_step(model.to(sizes.device).train(), tier, sizes)
    settle(step, first_of_each_shape(batches), tier)
    before = step.report().captures

    def run() -> None:
        for inputs, labels in batches:
            step(inputs, labels)

    def facts() -> dict[str, Any]:
        report = step.report()
        return {
            "tier": report.tier,
            "reason": report.reason,
            "slots_used": len(first_of_each_shape(batches)),
            "captures": report.captures,
            "captures_after_warm_up": report.captures - before,
        }

    return Rival(run, facts)


def train_step(model: Any, tier: str, sizes: Sizes) -> TrainStep:
    """Return a step in bf16 on CUDA, and in float32 on the eager tier on a CPU."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=sizes.device == "cuda")
    on_cuda = sizes.device == "cuda"
    return TrainStep(
        model,
        optimizer,
        lambda model, inputs, labels: model.compute_loss(inputs, labels),
        precision="bf16" if on_cuda else "fp32",
        tier=tier if on_cuda else "eager",
    )


def settle(step: TrainStep, shapes: Batches, tier: str) -> None:
    """Call the step with every shape until it makes no more recordings; frequent shapes are compiled late."""
    calls = 10 if tier == "compiled" else 6
    for _ in range(MOST_CALLS):
        before = step.report().captures
        for inputs, labels in shapes:
            step(inputs, labels)
        report = step.report()
        if (
            report.tier in (tier, "eager")
            and report.captures == before
            and report.steps > calls * len(shapes)
        ):
            return


def in_transformers(
    sizes: Sizes, batches: Batches, mode: str | None, *, dynamic: bool | None = None
) -> Rival:
    """The model of transformers with fused AdamW, in a plain loop."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(**sizes.bert, num_labels=2)
    config._attn_implementation = "sdpa"
    model = BertForSequenceClassification(config).to(sizes.device).train()
    step = torch_step(model, sizes, mode, dynamic=dynamic)
    for _ in range(3):
        for inputs, labels in first_of_each_shape(batches):
            step(inputs, labels)
    return Rival(lambda: [step(inputs, labels) for inputs, labels in batches])


def torch_step(model: Any, sizes: Sizes, mode: str | None, *, dynamic: bool | None) -> Callable[..., None]:
    """Return a training step of plain torch, compiled if there is a mode."""
    on_cuda = sizes.device == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=on_cuda)

    def loss_of(inputs: dict[str, Tensor], labels: Tensor) -> Tensor:
        loss: Tensor = model(**inputs, labels=labels).loss
        return loss

    torch._dynamo.config.cache_size_limit = 64
    forward: Any = loss_of if mode is None else torch.compile(loss_of, mode=mode, dynamic=dynamic)

    def step(inputs: dict[str, Tensor], labels: Tensor) -> None:
        optimizer.zero_grad()
        if mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(sizes.device, dtype=torch.bfloat16, enabled=on_cuda):
            loss = forward(inputs, labels)
        loss.backward()
        optimizer.step()

    return step

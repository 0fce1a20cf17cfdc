"""DeBERTa-v3-base in bf16: inference and training, with every placement of the scores of positions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rows.clock import Clock, Rival, results
from torch import Tensor

from .finetune import settle, torch_step, train_step
from .sizes import Sizes

TOKENS = 4096  # in a batch
CALLS = 10  # in a run


def inputs_of(sizes: Sizes, length: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return a batch in which the last quarter of every second row is padding."""
    count = 2 if sizes.quick else TOKENS // length
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(999, sizes.deberta["vocab_size"], (count, length), generator=source)
    mask = torch.ones_like(ids)
    mask[1::2, length * 3 // 4 :] = 0
    labels = torch.randint(2, (count,), generator=source)
    inputs = {"input_ids": ids * mask, "attention_mask": mask}
    return {name: value.to(sizes.device) for name, value in inputs.items()}, labels.to(sizes.device)


def placements(sizes: Sizes, length: int) -> list[str]:
    """Return the placements that differ at this length and train; "flex" is slower than all others."""
    rows = 2 * sizes.deberta["position_buckets"]
    return ["skew", "gather"] if 2 * length - 1 > rows else ["skew"]


def inference_placements(sizes: Sizes, length: int) -> list[str]:
    """Return the placements that differ at this length, the fused kernel first."""
    found = placements(sizes, length)
    return ["fused", *found] if sizes.device == "cuda" else found


def ours(sizes: Sizes, placement: str) -> Any:
    from flodl.hf import AutoModelForSequenceClassification
    from flodl.hf.parts.relative import DisentangledAttention

    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config({"model_type": "deberta-v2", **sizes.deberta})
    for module in model.modules():
        if isinstance(module, DisentangledAttention):
            module.placement = placement  # type: ignore[assignment]
    return model.to(sizes.device)


def theirs(sizes: Sizes) -> Any:
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    torch.manual_seed(0)
    config = DebertaV2Config(**sizes.deberta, num_labels=2)
    return DebertaV2ForSequenceClassification(config).to(sizes.device)


def infer(sizes: Sizes, clock: Clock, *, length: int) -> dict[str, Any]:
    """Time forward passes with weights in bf16."""
    modes = ["reduce-overhead", "default"] if sizes.device == "cuda" else []
    makers: dict[str, Callable[[], Rival]] = {
        "flodl eager, skew": partial(_forward, sizes, length, partial(ours, sizes, "skew"), None),
        "transformers eager": partial(_forward, sizes, length, partial(theirs, sizes), None),
    }
    if sizes.quick:
        for placement in placements(sizes, length)[1:]:
            make = partial(ours, sizes, placement)
            makers[f"flodl eager, {placement}"] = partial(_forward, sizes, length, make, None)
    for mode in modes[:1]:
        makers[f"transformers {mode}"] = partial(_forward, sizes, length, partial(theirs, sizes), mode)
        for placement in inference_placements(sizes, length):
            make = partial(ours, sizes, placement)
            makers[f"flodl {mode}, {placement}"] = partial(_forward, sizes, length, make, mode)
    for mode in modes[1:]:
        makers[f"transformers {mode}"] = partial(_forward, sizes, length, partial(theirs, sizes), mode)
    return _row(sizes, clock, length, makers)


def train(sizes: Sizes, clock: Clock, *, length: int) -> dict[str, Any]:
    """Time training steps in bf16 with float32 weights."""
    makers: dict[str, Callable[[], Rival]] = {
        "flodl captured, skew": partial(_train_ours, sizes, length, "skew", "captured"),
        "transformers eager": partial(_train_theirs, sizes, length, None),
    }
    if sizes.device == "cuda":
        first, *others = [f"flodl compiled, {placement}" for placement in placements(sizes, length)]
        makers[first] = partial(_train_ours, sizes, length, "skew", "compiled")
        for mode in ("reduce-overhead", "default"):
            makers[f"transformers {mode}"] = partial(_train_theirs, sizes, length, mode)
        for name in others:
            makers[name] = partial(_train_ours, sizes, length, name.rpartition(" ")[2], "compiled")
    return _row(sizes, clock, length, makers)


def _row(sizes: Sizes, clock: Clock, length: int, makers: dict[str, Callable[[], Rival]]) -> dict[str, Any]:
    rivals = clock.set_up(makers, reserve_s=12)
    timings = clock.measure(rivals, rounds=sizes.rounds)
    batch = len(inputs_of(sizes, length)[1])
    per_run = {"steps": CALLS, "tokens": CALLS * batch * length}
    return {
        "length": length,
        "batch": batch,
        "rivals": results(rivals, timings, per_run=per_run, ours="flodl"),
    }


def _forward(sizes: Sizes, length: int, make: Callable[[], Any], mode: str | None) -> Rival:
    inputs, _ = inputs_of(sizes, length)
    model = make().eval()
    if sizes.device == "cuda":
        model = model.to(torch.bfloat16)
    forward: Any = model if mode is None else torch.compile(model, mode=mode)

    @torch.inference_mode(mode is None)
    @torch.no_grad()
    def run(calls: int = CALLS) -> None:
        for _ in range(calls):
            if mode == "reduce-overhead":
                torch.compiler.cudagraph_mark_step_begin()
            forward(**inputs)

    run(4)
    return Rival(run)


def _train_ours(sizes: Sizes, length: int, placement: str, tier: str) -> Rival:
    inputs, labels = inputs_of(sizes, length)
    step = train_step(ours(sizes, placement).train(), tier, sizes)
    settle(step, [(inputs, labels)], tier)

    def run() -> None:
        for _ in range(CALLS):
            step(inputs, labels)

    return Rival(run, lambda: {"tier": step.report().tier, "reason": step.report().reason})


def _train_theirs(sizes: Sizes, length: int, mode: str | None) -> Rival:
    inputs, labels = inputs_of(sizes, length)
    step = torch_step(theirs(sizes).train(), sizes, mode, dynamic=None if mode is None else False)

    def run(calls: int = CALLS) -> None:
        for _ in range(calls):
            step(inputs, labels)

    run(4)
    return Rival(run)

"""One row: a model in eager mode, in every mode of the compiler, and in flodl."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rows.clock import Clock, Rival, results
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from flodl import TrainStep

from .models import MODELS, Batch, Model

LR, CLIP_NORM = 1e-4, 1.0
CALLS = 10  # in a run
# Dense throughput without sparsity, in FLOP/s.
PEAKS = {"NVIDIA H200": {"bf16": 989e12, "fp32": 495e12}, "NVIDIA H100": {"bf16": 989e12, "fp32": 495e12}}


@dataclass(frozen=True)
class Sizes:
    """Where to measure, with models of real size or tiny ones."""

    device: str
    quick: bool
    rounds: int


def measure(sizes: Sizes, clock: Clock, *, name: str) -> dict[str, Any]:
    """Time training steps of one model."""
    model = MODELS[name]
    on_cuda = sizes.device == "cuda"
    modes = ["default", "reduce-overhead", "max-autotune"] if on_cuda else ["default"]
    makers: dict[str, Callable[[], Rival]] = {
        "flodl compiled": partial(in_flodl, sizes, model, "compiled"),
        "torch eager": partial(in_torch, sizes, model, None),
        **{f"torch {mode}": partial(in_torch, sizes, model, mode) for mode in modes},
    }
    if on_cuda:
        makers["flodl captured"] = partial(in_flodl, sizes, model, "captured")
    rivals = clock.set_up(makers, reserve_s=20)
    timings = clock.measure(rivals, rounds=sizes.rounds)
    found = results(rivals, timings, per_run={"steps": CALLS}, ours="flodl")
    flops = next((row.pop("flops") for row in found.values() if "flops" in row), None)
    peak = next((value for card, value in PEAKS.items() if card in _card()), {}).get(model.precision)
    for row in found.values():
        if flops and peak:
            row["of_peak"] = flops / (row["ms"] / 1000) / peak
    return {
        "precision": model.precision,
        "is_transformer": model.is_transformer,
        "flops_per_step": flops,
        "rivals": found,
    }


def prepared(sizes: Sizes, model: Model) -> tuple[nn.Module, torch.optim.Optimizer, Batch]:
    """Return the model on the device, with AdamW and a batch."""
    torch.manual_seed(0)
    module = model.make(sizes.quick).to(sizes.device).train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=LR, fused=sizes.device == "cuda")
    return (
        module,
        optimizer,
        {name: value.to(sizes.device) for name, value in model.batch(sizes.quick).items()},
    )


def in_flodl(sizes: Sizes, model: Model, tier: str) -> Rival:
    """The step of flodl, on this tier."""
    step, batch = flodl_step(sizes, model, tier)
    began, reached = time.perf_counter(), None
    for _ in range(60):
        step(batch)
        if step.tier == tier and reached is None:
            reached = time.perf_counter() - began
        if reached is not None and step.report().step_s is not None:
            break

    def run() -> None:
        for _ in range(CALLS):
            step(batch)

    def facts() -> dict[str, Any]:
        report = step.report()
        memory = memory_gb()
        refused = [event.reason for event in report.events if event.cause == "refused"]
        facts = {"tier": report.tier, "reason": _relative(report.reason), "ready_s": reached, **memory}
        return facts | ({"refused": [*map(_relative, refused)]} if refused else {})

    return Rival(run, facts)


def flodl_step(sizes: Sizes, model: Model, tier: str) -> tuple[TrainStep, Batch]:
    """Return a step and its batch; on a CPU in float32."""
    module, optimizer, batch = prepared(sizes, model)
    step = TrainStep(
        module,
        optimizer,
        model.loss,
        clip_norm=CLIP_NORM,
        precision=model.precision if sizes.device == "cuda" else "fp32",
        tier=tier,  # type: ignore[arg-type]
    )
    return step, batch


def in_torch(sizes: Sizes, model: Model, mode: str | None) -> Rival:
    """A plain loop, in which the loss is compiled if there is a mode."""
    began = time.perf_counter()
    step = torch_step(sizes, model, mode)
    flops = count_flops(step) if mode is None else None

    def run(calls: int = CALLS) -> None:
        for _ in range(calls):
            step()

    run(4)
    if sizes.device == "cuda":
        torch.cuda.synchronize()
    ready_s = time.perf_counter() - began

    def facts() -> dict[str, Any]:
        return {"ready_s": ready_s, **memory_gb(), **({} if flops is None else {"flops": flops})}

    return Rival(run, facts)


def torch_step(sizes: Sizes, model: Model, mode: str | None) -> Callable[[], None]:
    """Return one training step of plain torch."""
    module, optimizer, batch = prepared(sizes, model)
    parameters = [*module.parameters()]
    is_mixed = model.precision == "bf16" and sizes.device == "cuda"
    loss_of: Any = model.loss if mode is None else torch.compile(model.loss, mode=mode, dynamic=False)

    def step() -> None:
        optimizer.zero_grad()
        if mode in ("reduce-overhead", "max-autotune"):
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(sizes.device, torch.bfloat16) if is_mixed else nullcontext():
            loss: Tensor = loss_of(module, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
        optimizer.step()

    return step


def count_flops(step: Callable[[], None]) -> int | None:
    """Return the floating-point operations of matmuls, convolutions and attention in a step.

    None if torch cannot count them, as for attention with fewer heads for keys than for queries.
    """
    try:
        with FlopCounterMode(display=False) as counter:
            step()
    except AssertionError:
        return None
    return int(counter.get_total_flops())


def memory_gb() -> dict[str, float]:
    """Return the peak of this process, and what it keeps once free blocks are returned."""
    if not torch.cuda.is_available():
        return {}
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return {
        "peak_gb": torch.cuda.max_memory_reserved() / 1e9,
        "kept_gb": torch.cuda.memory_reserved() / 1e9,
        # The rest of what is kept lies between tensors.
        "tensors_gb": torch.cuda.memory_allocated() / 1e9,
    }


def _relative(reason: str) -> str:
    """Return a reason whose paths begin at the root of the checkout."""
    return reason.replace(f"{Path(__file__).resolve().parents[2]}{os.sep}", "")


def _card() -> str:
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""

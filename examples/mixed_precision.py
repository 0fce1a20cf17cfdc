"""Mixed precision: the same training in float32, bfloat16 and, on CUDA, float16 with a loss scale.

Weights, gradients and the optimizer stay in float32; matmuls run in the smaller type. float16 has few
exponent bits, so the loss is scaled before the backward; the scale is found by skipping updates whose
gradients overflow.
"""

import time

import torch
from torch import Tensor, nn

from flodl import TrainStep, manual_seed
from flodl.engine import Precision

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH, STEPS = 128, 25


def build() -> nn.Module:
    manual_seed(0)
    layers = [nn.Linear(32, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 8)]
    return nn.Sequential(*layers).to(DEVICE)


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


def train(precision: Precision) -> None:
    model = build()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(256, 32, generator=generator).to(DEVICE)
    y = (x[:, :8].argmax(dim=1)).to(DEVICE)
    step = TrainStep(
        model, torch.optim.AdamW(model.parameters(), lr=3e-3), loss_of, precision=precision, clip_norm=1.0
    )
    started = time.perf_counter()
    losses = torch.stack([step(x, y) for _ in range(STEPS)])
    duration_s = time.perf_counter() - started
    dtypes = {str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()}
    print(
        f"{precision}: loss {losses[0].item():.4f} → {losses[-1].item():.4f}, weights in "
        f"{', '.join(dtypes)}, {step.report().skipped} updates skipped, {duration_s / STEPS * 1e3:.2f} ms "
        "per step"
    )


def main() -> None:
    train("fp32")
    train("bf16")
    if DEVICE == "cuda":
        train("tf32")
        train("fp16")
    else:
        print("tf32 and fp16 need a CUDA device")


if __name__ == "__main__":
    main()

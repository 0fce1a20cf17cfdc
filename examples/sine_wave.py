"""Fit a sine wave: the smallest complete training run, with a graph, a schedule and a trend.

Trains a small network with a residual to predict sin(x) between -2π and 2π, saves the model, loads it
again, and prints a few predictions. Writes sine_wave.fdl and
sine_wave.html, a plot of the loss, to the current folder.
"""

import math

import torch
from torch import Tensor, nn

from flodl import FlowBuilder, Graph, TrainStep, manual_seed
from flodl.optim import CosineScheduler

EPOCHS, STEPS = 40, 20
WIDTH = 32


def build() -> Graph:
    return (
        FlowBuilder(nn.Linear(1, WIDTH), input="x")
        .through(nn.Tanh())
        .also(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()))
        .through(nn.Linear(WIDTH, 1))
        .tag("prediction")
        .build(example=torch.zeros(2, 1))
    )


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), y)


def main() -> None:
    manual_seed(0)
    model = build()
    x = torch.linspace(-2 * math.pi, 2 * math.pi, 400).unsqueeze(1)
    y = x.sin()
    step = TrainStep(
        model,
        torch.optim.Adam(model.parameters(), lr=0.01),
        loss_of,
        clip_norm=1.0,
        schedule=CosineScheduler(0.01, 0.0001, EPOCHS * STEPS),
    )
    for epoch in range(1, EPOCHS + 1):
        for _ in range(STEPS):
            model.record("loss", step(x, y))
        model.end_epoch()
        if epoch % 10 == 0:
            print(f"epoch {epoch:2d}  loss {model.latest_metrics()['loss']:.6f}")
    print("still improving:", model.trend("loss").improving(5))

    model.save_checkpoint("sine_wave.fdl")
    model.plot_html("sine_wave.html")
    loaded = build()
    print(loaded.load_checkpoint("sine_wave.fdl"))
    for value in (-math.pi / 2, 0.0, 1.0):
        predicted = loaded(torch.tensor([[value]])).item()
        print(f"sin({value:+.2f}) = {math.sin(value):+.3f}, predicted {predicted:+.3f}")


if __name__ == "__main__":
    main()

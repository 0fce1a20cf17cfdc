"""Classify points as inside or outside a circle. All settings come from the command line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flodl.cli import Args, option


@dataclass(frozen=True)
class Settings:
    """Train a classifier for points on a plane."""

    epochs: int = option(10, help="Number of epochs.")
    lr: float = option(1e-2, env="CIRCLE_LR", help="The learning rate.")
    seed: int = option(0, help="Random seed.")
    hidden: int = option(16, help="Size of the hidden layer.")
    activation: Literal["relu", "gelu"] = option("relu", help="Activation after the hidden layer.")
    output: Path | None = option(None, short="o", help="Where to save the model.")  # noqa: RUF009


def train(settings: Settings) -> float:
    """Train, and return the accuracy."""
    # Imported here, so that --help and the schema do not wait for torch.
    import torch
    from torch import nn

    import flodl

    flodl.manual_seed(settings.seed)
    points = torch.rand(512, 2) * 2 - 1
    inside = (points.square().sum(dim=1) < 0.6).float()
    activation = nn.GELU() if settings.activation == "gelu" else nn.ReLU()
    model = (
        flodl.FlowBuilder(nn.Linear(2, settings.hidden))
        .through(activation)
        .through(nn.Linear(settings.hidden, 1))
        .build()
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
    for _ in range(settings.epochs):
        for batch in torch.randperm(512).split(64):
            loss = nn.functional.binary_cross_entropy_with_logits(model(points[batch])[:, 0], inside[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if settings.output:
        model.save_checkpoint(settings.output / "model.fdl")
    return ((model(points)[:, 0] > 0) == inside.bool()).float().mean().item()


if __name__ == "__main__":
    settings = Args(Settings).parse()
    print(settings)
    print(f"accuracy: {train(settings):.0%}")

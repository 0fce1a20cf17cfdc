"""Draw a model and a heat map of its run time: python examples/pictures.py [folder]."""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from flodl import FlowBuilder, Graph, SoftmaxRouter, ThresholdHalt


class Remember(nn.Module):
    """Add half of the value from the previous call."""

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        return x if memory is None else x + 0.5 * memory


def build() -> Graph:
    """Return a small model with a subgraph, a loop, a gate, a reference and a carried value."""
    encoder = (
        FlowBuilder(nn.Linear(16, 64)).through(nn.LayerNorm(64)).also(nn.Linear(64, 64)).label("encoder")
    )
    return (
        FlowBuilder(encoder.build())
        .tag("features")
        .loop_body(nn.Linear(64, 64))
        .until_cond(ThresholdHalt(4.0), max_iter=3)
        .tag("refined")
        .gate(
            SoftmaxRouter(64, 2), [nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 64))]
        )
        .using("features")
        .through(Remember())
        .using("memory")
        .tag("memory")
        .through(nn.Linear(64, 4))
        .tag("output")
        .label("pictures")
        .build()
    )


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    torch.manual_seed(0)
    model = build().eval()
    model.svg(folder / "pictures-model.svg")
    print(model.profile(torch.randn(256, 16)))
    model.svg_with_profile(folder / "pictures-heat.svg")
    print(f"\nWrote pictures-model.svg and pictures-heat.svg to {folder.resolve()}. Open them in a browser.")


if __name__ == "__main__":
    main()

"""The reference models of the second tier, twice: by hand, and with the builder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flodl import FlowBuilder, Graph, SoftmaxRouter


class Block(nn.Module):
    """Linear, GELU, layer norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.act, self.norm = nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.act(self.linear(x)))


class ResidualTower(nn.Module):
    def __init__(self, width: int = 1024, depth: int = 12) -> None:
        super().__init__()
        self.entry = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.exit = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        for block in self.blocks:
            x = x + block(x)
        return self.exit(x)


class GatedRouting(nn.Module):
    def __init__(self, width: int = 512, num_experts: int = 8) -> None:
        super().__init__()
        self.entry, self.act = nn.Linear(width, width), nn.GELU()
        self.router = nn.Linear(width, num_experts)
        self.experts = nn.ModuleList(Block(width) for _ in range(num_experts))
        self.exit = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.entry(x))
        weights = self.router(x).softmax(-1)
        stacked = torch.stack([expert(x) for expert in self.experts], dim=1)
        return self.exit((stacked * weights.unsqueeze(-1)).sum(1))


class IterativeRefine(nn.Module):
    def __init__(self, width: int = 1024, turns: int = 8) -> None:
        super().__init__()
        self.entry, self.act, self.norm = nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)
        self.block, self.turns = Block(width), turns
        self.exit = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.act(self.entry(x)))
        for _ in range(self.turns):
            x = x + self.block(x)
        return self.exit(x)


def block(width: int) -> Graph:
    """The same block with the builder."""
    return FlowBuilder(nn.Linear(width, width)).through(nn.GELU()).through(nn.LayerNorm(width)).build()


def residual_tower(width: int = 1024, depth: int = 12) -> Graph:
    flow = FlowBuilder(nn.Linear(width, width))
    for _ in range(depth):
        flow = flow.also(block(width))
    return flow.through(nn.Linear(width, width)).build()


def gated_routing(width: int = 512, num_experts: int = 8) -> Graph:
    return (
        FlowBuilder(nn.Linear(width, width))
        .through(nn.GELU())
        .gate(SoftmaxRouter(width, num_experts), [block(width) for _ in range(num_experts)])
        .through(nn.Linear(width, width))
        .build()
    )


def iterative_refine(width: int = 1024, turns: int = 8) -> Graph:
    return (
        FlowBuilder(nn.Linear(width, width))
        .through(nn.GELU())
        .through(nn.LayerNorm(width))
        .loop_body(FlowBuilder().also(block(width)).build())
        .for_n(turns)
        .through(nn.Linear(width, width))
        .build()
    )


@dataclass(frozen=True)
class Reference:
    """One model of the suite: how to build it both ways, and its batch."""

    graph: Callable[[], Graph]
    by_hand: Callable[[], nn.Module]
    batch: int
    width: int


TIER_2 = {
    "residual_tower": Reference(residual_tower, ResidualTower, 256, 1024),
    "gated_routing": Reference(gated_routing, GatedRouting, 256, 512),
    "iterative_refine": Reference(iterative_refine, IterativeRefine, 256, 1024),
    "feedback_fixed": Reference(
        lambda: iterative_refine(512, 10), lambda: IterativeRefine(512, 10), 128, 512
    ),
}

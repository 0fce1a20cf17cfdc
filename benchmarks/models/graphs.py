"""The reference models with flodl's builder; parameters have the same order as in `by_hand`."""

from __future__ import annotations

from torch import nn

from flodl import FlowBuilder, Graph, SoftmaxRouter

from . import by_hand


def mlp(width: int = 1024, hidden: int = 2048) -> Graph:
    return _in_a_row(by_hand.mlp(width, hidden))


def convnet(channels: tuple[int, ...] = (64, 128, 256, 512, 512), num_outputs: int = 100) -> Graph:
    return _in_a_row(by_hand.convnet(channels, num_outputs))


def conv_autoenc(channels: tuple[int, ...] = (64, 128, 256, 512)) -> Graph:
    return _in_a_row(by_hand.conv_autoenc(channels))


def gru_seq(width: int = 256, hidden: int = 512) -> Graph:
    return FlowBuilder(by_hand.UnrolledGru(width, hidden)).through(nn.Linear(hidden, width)).build()


def lstm_seq(width: int = 256, hidden: int = 512) -> Graph:
    return FlowBuilder(by_hand.LastOfLstm(width, hidden)).through(nn.Linear(hidden, width)).build()


def _in_a_row(modules: nn.Sequential) -> Graph:
    """Return a flat graph with one node per module."""
    first, *rest = modules
    flow = FlowBuilder(first)
    for module in rest:
        flow = flow.through(module)
    return flow.build()


def transformer(
    vocabulary: int = 8192,
    width: int = 512,
    hidden: int = 2048,
    heads: int = 8,
    depth: int = 4,
    length: int = 128,
) -> Graph:
    flow = FlowBuilder(nn.Embedding(vocabulary, width)).through(by_hand.Positions(length, width))
    for _ in range(depth):
        flow = flow.also(by_hand.Attention(width, heads, need_weights=False)).through(nn.LayerNorm(width))
        flow = flow.also(_in_a_row(by_hand.feed_forward(width, hidden))).through(nn.LayerNorm(width))
    return flow.through(nn.Linear(width, vocabulary)).build()


def block(width: int) -> Graph:
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
    loop = _refined(width)
    return loop.for_n(turns).through(nn.Linear(width, width)).build()


def feedback_loop(width: int = 512, turns: int = 10, *, masked: bool = True) -> Graph:
    """Return a masked loop, which runs all iterations, so that the host reads nothing."""
    loop = _refined(width)
    halted = loop.until_cond(by_hand.MeanHalt(width), turns, masked=masked)
    return halted.through(nn.Linear(width, width)).build()


def _refined(width: int):  # type: ignore[no-untyped-def]
    """Return an entry layer and an open loop over one residual block."""
    entry = FlowBuilder(nn.Linear(width, width)).through(nn.GELU()).through(nn.LayerNorm(width))
    return entry.loop_body(FlowBuilder().also(block(width)).build())

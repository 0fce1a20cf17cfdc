"""Encoder layers with the norm after the residual, and a stack of them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from flodl.graph import FlowBuilder, Graph

from ..config import EncoderConfig
from .activation import Activation
from .attention import SelfAttention, attention


def feed_forward(config: EncoderConfig) -> Graph:
    """Two linear layers with an activation between them, without the residual."""
    sizes = config.sizes
    return (
        FlowBuilder(nn.Linear(sizes.hidden, sizes.intermediate))
        .through(Activation(config.activation))
        .through(nn.Linear(sizes.intermediate, sizes.hidden))
        .through(nn.Dropout(config.dropout.hidden))
        .label("feed_forward")
        .build()
    )


def layer(config: EncoderConfig, name: str) -> Graph:
    """One encoder layer: attention and feed-forward, each added to the stream and then normalized."""
    return (
        FlowBuilder()
        .input("mask")
        .also(attention(config, SelfAttention(config), "mask"))
        .using("mask")
        .through(norm(config))
        .also(feed_forward(config))
        .through(norm(config))
        .label(name)
        .build()
    )


def norm(config: EncoderConfig) -> nn.LayerNorm:
    """A layer norm over the hidden size."""
    return nn.LayerNorm(config.sizes.hidden, eps=config.norm_eps)


def stack(layers: Iterable[Graph], *refs: str) -> Graph:
    """Layers in a row; layer 3 and its output are called `encoder.layer.3`."""
    flow = FlowBuilder().input(*refs)
    for body in layers:
        assert body.label is not None
        flow.through(body).using(*refs).tag(body.label)
    return flow.label("layer").build()


def encoder(config: EncoderConfig) -> Graph:
    """All layers of a BERT-like encoder."""
    layers = [layer(config, str(index)) for index in range(config.sizes.layers)]
    return FlowBuilder().input("mask").through(stack(layers, "mask")).using("mask").label("encoder").build()

"""Encoder layers with the norm after the residual, and a stack of them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from flodl.graph import FlowBuilder, Graph

from ..config import EncoderConfig
from .activation import Activation
from .attention import SelfAttention, attention


def feed_forward(config: EncoderConfig, *, dropout: bool = True) -> Graph:
    """Two linear layers with an activation between them, without the residual."""
    sizes = config.sizes
    flow = FlowBuilder(nn.Linear(sizes.hidden, sizes.intermediate)).through(Activation(config.activation))
    flow.through(nn.Linear(sizes.intermediate, sizes.hidden))
    if dropout:
        flow.through(nn.Dropout(config.dropout.hidden))
    return flow.label("feed_forward").build()


def layer(name: str, config: EncoderConfig, attend: Graph, feed: Graph, *refs: str) -> Graph:
    """One encoder layer: attention and feed-forward, each added to the stream and then normalized."""
    return (
        FlowBuilder()
        .input(*refs)
        .also(attend)
        .using(*refs)
        .through(norm(config))
        .also(feed)
        .through(norm(config))
        .label(name)
        .build()
    )


def bert_layer(config: EncoderConfig, name: str) -> Graph:
    """A layer of BERT: plain self-attention, dropout before both residuals."""
    return layer(name, config, attention(config, SelfAttention(config), "mask"), feed_forward(config), "mask")


def norm(config: EncoderConfig) -> nn.LayerNorm:
    """A layer norm over the hidden size."""
    return nn.LayerNorm(config.sizes.hidden, eps=config.norm_eps)


def stack(layers: Sequence[Graph]) -> Graph:
    """Layers in a row; layer 3 and its output are called `encoder.layer.3`.

    The inputs are those of the layers; each layer gets its own.
    """
    flow = FlowBuilder().input(*inputs_of(layers))
    for body in layers:
        assert body.label is not None
        flow.through(body).using(*body.spec.input_names).tag(body.label)
    return flow.label("layer").build()


def inputs_of(layers: Sequence[Graph]) -> tuple[str, ...]:
    """Return the names of the inputs that some layer has."""
    return tuple(dict.fromkeys(name for body in layers for name in body.spec.input_names))


def encoder(layers: Sequence[Graph]) -> Graph:
    """The layers of an encoder that needs nothing but the mask."""
    return FlowBuilder().input("mask").through(stack(layers)).using("mask").label("encoder").build()


def bert_encoder(config: EncoderConfig) -> Graph:
    """The encoder of BERT."""
    return encoder([bert_layer(config, str(index)) for index in range(config.sizes.layers)])

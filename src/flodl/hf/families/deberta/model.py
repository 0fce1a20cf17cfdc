"""DeBERTa v2 and v3 as a graph."""

from __future__ import annotations

from torch import Tensor, nn

from flodl.graph import FlowBuilder, Graph

from ...config import EncoderConfig
from ...heads import Head
from ...parts.activation import Activation
from ...parts.attention import attention
from ...parts.backbone import read_packed
from ...parts.embeddings import Embeddings
from ...parts.heads import Decoder, answer, classify, classify_pooled, pooler, predict_words
from ...parts.layers import feed_forward, layer, norm
from ...parts.packed import Packed, Packing
from ...parts.relative import (
    DisentangledAttention,
    RelativeEmbeddings,
    RelativePositions,
    pair_bias,
    real_tokens,
)
from .options import Options, read_config

__all__ = ["build", "read_config"]


def build(config: EncoderConfig, head: Head) -> Graph:
    """Embeddings, encoder and one head."""
    options: Options = config.options
    tokens = Embeddings(config, numbering="from_zero" if options.absolute_positions else "none")
    flow = (
        FlowBuilder()
        .input("attention_mask", *tokens.input_names)
        .through(embeddings(config, tokens))
        .using("attention_mask", *tokens.input_names)
    )
    # No kernel for packed tokens adds scores of relative positions.
    read_packed(
        flow, Packing(config, positions=tokens.longest, numbered=options.absolute_positions, kernel=False)
    )
    flow = (
        flow.fork(real_tokens)
        .using("attention_mask", "packed")
        .tag("real")
        .fork(pair_bias)
        .using("real")
        .tag("mask")
        .through(encoder(config))
        .using("mask", "real", "packed", *["attention_mask"] * bool(options.conv_kernel))
        .tag("encoder")
    )
    match head:
        case Head.SEQUENCE_CLASSIFICATION:
            pool = pooler(config, activation=options.pooler_activation, dropout=options.pooler_dropout)
            classify_pooled(flow, config, pool)
        case Head.TOKEN_CLASSIFICATION:
            classify(flow, config, config.dropout.hidden)
        case Head.QUESTION_ANSWERING:
            answer(flow, config)
        case Head.MASKED_LM:
            predict_words(flow, config, Decoder(tokens.word, tied=config.tied or not options.legacy))
    return flow.label("deberta").build()


def embeddings(config: EncoderConfig, tokens: Embeddings) -> Graph:
    """Look up, widen if needed, normalize, clear padding, drop out."""
    flow = FlowBuilder().input("attention_mask", *tokens.input_names).through(tokens)
    if tokens.input_names:
        flow.using(*tokens.input_names)
    flow.tag("tokens")
    if config.sizes.embedding != config.sizes.hidden:
        flow.through(nn.Linear(config.sizes.embedding, config.sizes.hidden, bias=False))
    return (
        flow.through(norm(config))
        .through(clear_padding)
        .using("attention_mask")
        .through(nn.Dropout(config.dropout.hidden))
        .label("embeddings")
        .build()
    )


def clear_padding(hidden: Tensor, *, attention_mask: Tensor | None) -> Tensor:
    """Set the hidden states of padding to zero."""
    return hidden if attention_mask is None else hidden * attention_mask.to(hidden.dtype).unsqueeze(-1)


def encoder(config: EncoderConfig) -> Graph:
    """All layers; a convolution over the embeddings may follow the first."""
    options: Options = config.options
    refs = ["mask", "real", "packed"]
    inputs = [*refs, *["attention_mask"] * bool(options.conv_kernel)]
    flow = FlowBuilder().input(*inputs)
    if options.relative_attention or options.normalizes_relative:
        rows = 2 * options.span if options.relative_attention else None
        flow.fork(RelativeEmbeddings(config, rows, normalized=options.normalizes_relative)).tag("relative")
    if options.relative_attention:
        flow.fork(RelativePositions(options.span, options.num_buckets, options.max_distance))
        flow.using("packed").tag("distance")
        refs += ["relative", "distance"]
    layers = FlowBuilder().input(*refs, *inputs[3:])
    if options.conv_kernel:
        layers.through(nn.Identity()).tag("embedded")
    for index in range(config.sizes.layers):
        layers.through(deberta_layer(config, str(index), *refs)).using(*refs).tag(str(index))
        if index == 0 and options.conv_kernel:
            layers.through(Convolution(config, options))
            layers.using("embedded", "attention_mask", "packed").tag("convolution")
    stack = layers.label("layer").build()
    return flow.through(stack).using(*refs, *inputs[3:]).label("encoder").build()


def deberta_layer(config: EncoderConfig, name: str, *refs: str) -> Graph:
    """A layer of BERT with disentangled attention."""
    options: Options = config.options
    core = DisentangledAttention(
        config, terms=options.terms, shared=options.shares_projections, relative=options.relative_attention
    )
    return layer(name, config, attention(config, core, *refs), feed_forward(config), *refs)


class Convolution(nn.Module):
    """Add a convolution over the embeddings to the stream, and normalize; padding becomes zero."""

    def __init__(self, config: EncoderConfig, options: Options) -> None:
        super().__init__()
        hidden, kernel = config.sizes.hidden, options.conv_kernel
        self.conv = nn.Conv1d(hidden, hidden, kernel, padding=(kernel - 1) // 2, groups=options.conv_groups)
        self.norm = norm(config)
        self.dropout = nn.Dropout(config.dropout.hidden)
        self.activation = Activation(options.conv_activation)

    def forward(
        self, hidden: Tensor, *, embedded: Tensor, attention_mask: Tensor | None, packed: Packed | None
    ) -> Tensor:
        rows = None if packed is None else packed.rows
        if rows is not None:
            embedded = clear_padding(rows.spread(embedded), attention_mask=rows.real)
        mixed = self.conv(embedded.mT).mT
        mixed = clear_padding(mixed if rows is None else rows.join(mixed), attention_mask=attention_mask)
        mixed = self.norm(hidden + self.activation(self.dropout(mixed)))
        return clear_padding(mixed, attention_mask=attention_mask)

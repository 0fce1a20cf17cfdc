"""ModernBERT as a graph."""

from __future__ import annotations

from torch import Tensor, nn

from flodl.graph import FlowBuilder, Graph

from ...config import EncoderConfig
from ...heads import Head
from ...packing.rows import rows_of
from ...parts.activation import Activation
from ...parts.attention import padding_bias
from ...parts.backbone import read_packed
from ...parts.embeddings import Embeddings
from ...parts.heads import Decoder, classify, first_token, predict_words, start_and_end
from ...parts.layers import inputs_of, stack
from ...parts.packed import Packed, Packing
from ...parts.rotary import LocalRotaryAttention, RotaryAttention, Rotation, Sight, Window
from .options import Options


def build(config: EncoderConfig, head: Head) -> Graph:
    """Embeddings, encoder and one head."""
    options: Options = config.options
    tokens = Embeddings(config, numbering="none")
    flow = FlowBuilder().input("attention_mask", "position_ids").through(embeddings(config, tokens))
    read_packed(flow, Packing(config, windowed=True))
    flow = (
        flow.fork(padding_bias)
        .using("attention_mask", "packed")
        .tag("mask")
        .through(encoder(config))
        .using("mask", "position_ids")
        .tag("encoder")
    )
    match head:
        case Head.SEQUENCE_CLASSIFICATION:
            if options.classifier_pooling == "cls":
                flow.through(first_token).using("packed")
            else:
                flow.through(mean_of_tokens).using("attention_mask", "packed")
            flow.through(transform(config)).tag("pooler")
            classify(flow, config, config.dropout.classifier)
        case Head.TOKEN_CLASSIFICATION:
            classify(flow.through(transform(config)), config, config.dropout.classifier)
        case Head.QUESTION_ANSWERING:
            flow.through(transform(config)).through(nn.Dropout(config.dropout.classifier))
            flow.through(nn.Linear(config.sizes.hidden, 2)).tag("qa_outputs").through(start_and_end)
        case Head.MASKED_LM:
            predict_words(
                flow,
                config,
                Decoder(tokens.word, tied=config.tied, bias=options.decoder_bias, spare=False),
                activation=options.classifier_activation,
                bias=options.classifier_bias,
                norm_bias=options.norm_bias,
            )
    return flow.label("modernbert").build()


def embeddings(config: EncoderConfig, tokens: Embeddings) -> Graph:
    """Look up, normalize, drop out; positions enter through rotations in the attention."""
    dropout = nn.Dropout(config.options.embedding_dropout)
    return (
        FlowBuilder(tokens).tag("tokens").through(norm(config)).through(dropout).label("embeddings").build()
    )


def encoder(config: EncoderConfig) -> Graph:
    """All layers, with one mask and one rotation for global layers and one for local layers."""
    options, width = config.options, config.sizes.hidden // config.sizes.heads
    layers = [layer(config, index) for index in range(config.sizes.layers)]
    refs = inputs_of(layers)
    flow = FlowBuilder().input("mask", "position_ids")
    if "rotation" in refs:
        flow.fork(Rotation(width, options.theta)).using("position_ids").tag("rotation")
    if "local_rotation" in refs:
        flow.fork(Rotation(width, options.local_theta)).using("position_ids").tag("local_rotation")
        flow.fork(Sight(options.reach)).using("mask").tag("sees")
        flow.fork(Window(options.reach)).using("mask", "sees").tag("window")
    return flow.through(stack(layers)).using(*refs).through(norm(config)).label("encoder").build()


def layer(config: EncoderConfig, index: int) -> Graph:
    """One layer: attention and feed-forward, each normalized first and added to the stream."""
    refs = ("window", "sees", "local_rotation") if config.options.is_local[index] else ("mask", "rotation")
    return (
        FlowBuilder()
        .input(*refs)
        .also(attention(config, index, *refs))
        .using(*refs)
        .also(feed_forward(config))
        .label(str(index))
        .build()
    )


def attention(config: EncoderConfig, index: int, *refs: str) -> Graph:
    """Rotary attention with its norm, which the first layer does not have, and its output projection."""
    hidden, bias = config.sizes.hidden, config.options.attention_bias
    core = (LocalRotaryAttention if config.options.is_local[index] else RotaryAttention)(config, bias=bias)
    flow = FlowBuilder().input(*refs)
    if index:
        flow.through(norm(config))
    flow.through(core).using(*refs).through(nn.Linear(hidden, hidden, bias=bias))
    return flow.through(nn.Dropout(config.dropout.attention)).label("attention").build()


def feed_forward(config: EncoderConfig) -> Graph:
    """A gated linear unit with its norm."""
    sizes, bias = config.sizes, config.options.mlp_bias
    return (
        FlowBuilder(norm(config))
        .through(nn.Linear(sizes.hidden, 2 * sizes.intermediate, bias=bias))
        .through(Gate(config.activation))
        .through(nn.Dropout(config.options.mlp_dropout))
        .through(nn.Linear(sizes.intermediate, sizes.hidden, bias=bias))
        .label("feed_forward")
        .build()
    )


class Gate(nn.Module):
    """Multiply the activation of the first half by the second half."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.activation = Activation(activation)

    def forward(self, hidden: Tensor) -> Tensor:
        value, gate = hidden.chunk(2, dim=-1)
        active: Tensor = self.activation(value)
        return active * gate


def transform(config: EncoderConfig) -> Graph:
    """Linear, activation, norm: what comes before each classifier."""
    hidden, options = config.sizes.hidden, config.options
    return (
        FlowBuilder(nn.Linear(hidden, hidden, bias=options.classifier_bias))
        .through(Activation(options.classifier_activation))
        .through(norm(config))
        .label("transform")
        .build()
    )


def mean_of_tokens(hidden: Tensor, *, attention_mask: Tensor | None, packed: Packed | None) -> Tensor:
    """The mean of the hidden states of real tokens; zero for a row without any."""
    if packed is not None:
        rows = packed.rows or rows_of(packed.cu_seqlens, hidden.shape[1], packed.longest)
        hidden, attention_mask = rows.spread(hidden), rows.real
    if attention_mask is None:
        return hidden.mean(dim=1)
    real = attention_mask.to(hidden.dtype).unsqueeze(-1)
    return (hidden * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)


def norm(config: EncoderConfig) -> nn.LayerNorm:
    """A layer norm over the hidden size, by default without a bias."""
    return nn.LayerNorm(config.sizes.hidden, eps=config.norm_eps, bias=config.options.norm_bias)

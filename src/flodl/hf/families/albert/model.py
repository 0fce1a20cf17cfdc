"""ALBERT as a graph: each group of layers is the body of a loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from flodl.core import HFError
from flodl.graph import FlowBuilder, Graph

from ...config import Dropouts, EncoderConfig, Fields, bert_sizes
from ...heads import Head
from ...parts.attention import SelfAttention, attention
from ...parts.backbone import backbone
from ...parts.embeddings import Embeddings
from ...parts.heads import Decoder, answer, classify, classify_pooled, pooler, predict_words
from ...parts.layers import feed_forward, layer


@dataclass(frozen=True)
class Options:
    """What only ALBERT has: groups with weights of their own, and the number of layers in a group."""

    num_groups: int
    group_size: int


def build(config: EncoderConfig, head: Head) -> Graph:
    """Embeddings, encoder and one head."""
    tokens = Embeddings(config)
    flow = backbone(config, tokens, encoder(config))
    match head:
        case Head.BASE:
            if config.pooler:
                flow.fork(pooler(config)).using("packed").tag("pooler")
        case Head.SEQUENCE_CLASSIFICATION:
            classify_pooled(flow, config, pooler(config))
        case Head.TOKEN_CLASSIFICATION:
            classify(flow, config, config.dropout.classifier)
        case Head.QUESTION_ANSWERING:
            answer(flow, config)
        case Head.MASKED_LM:
            predict_words(flow, config, Decoder(tokens.word, tied=config.tied))
    return flow.label("albert").build()


def encoder(config: EncoderConfig) -> Graph:
    """Widen the embeddings, then apply each group its number of times; group 0 is `encoder.layer.0`."""
    layers = FlowBuilder().input("mask")
    for index, count in enumerate(repetitions(config)):
        layers.loop_body(group(config, str(index))).for_n(count).using("mask").tag(str(index))
    return (
        FlowBuilder()
        .input("mask")
        .through(nn.Linear(config.sizes.embedding, config.sizes.hidden))
        .through(layers.label("layer").build())
        .using("mask")
        .label("encoder")
        .build()
    )


def group(config: EncoderConfig, name: str) -> Graph:
    """Layers that are applied together; with one layer, the group is that layer."""
    if config.options.group_size == 1:
        return albert_layer(config, name)
    flow = FlowBuilder().input("mask")
    for index in range(config.options.group_size):
        flow.through(albert_layer(config, str(index))).using("mask")
    return flow.label(name).build()


def albert_layer(config: EncoderConfig, name: str) -> Graph:
    """A layer of BERT without dropout after the feed-forward."""
    attend = attention(config, SelfAttention(config), "mask")
    return layer(name, config, attend, feed_forward(config, dropout=False), "mask")


def repetitions(config: EncoderConfig) -> list[int]:
    """Return how many times each group is applied."""
    layers, groups = config.sizes.layers, config.options.num_groups
    used = [int(index / (layers / groups)) for index in range(layers)]
    return [used.count(index) for index in range(groups)]


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Read the config.json of an ALBERT checkpoint."""
    fields = Fields(raw)
    fields.refuse_decoders()
    hidden = fields.probability("hidden_dropout_prob", 0.0)
    no_dropout = raw.get("classifier_dropout_prob", 0.1) is None
    config = EncoderConfig(
        model_type="albert",
        sizes=bert_sizes(fields, embedding=128),
        dropout=Dropouts(
            hidden=hidden,
            attention=fields.probability("attention_probs_dropout_prob", 0.0),
            classifier=hidden if no_dropout else fields.probability("classifier_dropout_prob", 0.1),
        ),
        activation=fields.text("hidden_act", "gelu_new"),
        norm_eps=fields.number("layer_norm_eps", 1e-12),
        pad_token_id=fields.token_id("pad_token_id", 0),
        options=Options(fields.integer("num_hidden_groups", 1), fields.integer("inner_group_num", 1)),
        **fields.shared(),
    )
    if config.options.num_groups > config.sizes.layers:
        raise HFError(
            f"config.json: {config.options.num_groups} groups for {config.sizes.layers} layers leave groups "
            "that are never applied. Set num_hidden_groups to at most num_hidden_layers."
        )
    return config

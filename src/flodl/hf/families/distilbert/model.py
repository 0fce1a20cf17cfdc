"""DistilBERT as a graph."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from flodl.graph import Graph

from ...config import Dropouts, EncoderConfig, Fields, Sizes, check_heads
from ...heads import Head
from ...parts.attention import SelfAttention, attention
from ...parts.backbone import backbone
from ...parts.embeddings import Embeddings
from ...parts.heads import Decoder, answer, classify, classify_pooled, pooler, predict_words
from ...parts.initialization import initialize as initialize_linear
from ...parts.layers import encoder, feed_forward, layer


@dataclass(frozen=True)
class Options:
    """What only DistilBERT has."""

    answer_dropout: float
    sinusoidal_positions: bool


def build(config: EncoderConfig, head: Head) -> Graph:
    """Embeddings, encoder and one head."""
    tokens = Embeddings(config)
    layers = [distilbert_layer(config, str(index)) for index in range(config.sizes.layers)]
    flow = backbone(config, tokens, encoder(layers))
    match head:
        case Head.SEQUENCE_CLASSIFICATION:
            classify_pooled(flow, config, pooler(config, activation="relu"))
        case Head.TOKEN_CLASSIFICATION:
            classify(flow, config, config.dropout.hidden)
        case Head.QUESTION_ANSWERING:
            answer(flow, config, dropout=config.options.answer_dropout)
        case Head.MASKED_LM:
            predict_words(flow, config, Decoder(tokens.word, tied=config.tied, spare=False))
    return flow.label("distilbert").build()


def distilbert_layer(config: EncoderConfig, name: str) -> Graph:
    """A layer of BERT without dropout after the attention."""
    attend = attention(config, SelfAttention(config), "mask", dropout=False)
    return layer(name, config, attend, feed_forward(config), "mask")


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Read the config.json of a DistilBERT checkpoint."""
    fields = Fields(ChainMap(cast(dict[str, Any], raw), _old_names(raw)))
    fields.refuse_decoders()
    sizes = Sizes(
        vocab=fields.integer("vocab_size"),
        hidden=fields.integer("dim"),
        layers=fields.integer("n_layers"),
        heads=fields.integer("n_heads"),
        intermediate=fields.integer("hidden_dim"),
        positions=fields.integer("max_position_embeddings", 512),
    )
    return EncoderConfig(
        model_type="distilbert",
        sizes=check_heads(sizes),
        dropout=Dropouts(
            hidden=fields.probability("dropout", 0.1),
            attention=fields.probability("attention_dropout", 0.1),
            classifier=fields.probability("seq_classif_dropout", 0.2),
        ),
        activation=fields.text("activation", "gelu"),
        norm_eps=1e-12,
        pad_token_id=fields.token_id("pad_token_id", 0),
        pooler=False,
        options=Options(fields.probability("qa_dropout", 0.1), fields.flag("sinusoidal_pos_embds", False)),
        **{**fields.shared(), "raw": dict(raw)},
    )


def _old_names(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return sizes that are given under the names of the other families, as transformers accepts them."""
    names = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}
    return {ours: raw[theirs] for theirs, ours in names.items() if theirs in raw}


@torch.no_grad()
def initialize(graph: Graph, config: EncoderConfig, *, only: Container[str] | None = None) -> None:
    """Draw random weights; positions may start as sines and cosines."""
    initialize_linear(graph, config, only=only)
    name = "embeddings.tokens.position.weight"
    if config.options.sinusoidal_positions and (only is None or name in only):
        weight = graph.get_parameter(name)
        weight.copy_(_sinusoids(*weight.shape))


def _sinusoids(positions: int, width: int) -> Tensor:
    channel = torch.arange(width, dtype=torch.float64)
    angles = torch.arange(positions)[:, None] / 10000 ** (2 * (channel // 2) / width)
    return torch.where(channel.long() % 2 == 0, angles.sin(), angles.cos())

"""BERT as a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flodl.graph import FlowBuilder, Graph

from ...config import EncoderConfig, Fields, bert_dropouts, bert_sizes
from ...heads import Head
from ...parts.attention import padding_bias
from ...parts.embeddings import Embeddings, embeddings
from ...parts.heads import Decoder, answer, classify_pooled, classify_tokens, pooler, predict_words
from ...parts.layers import encoder


def build(config: EncoderConfig, head: Head) -> Graph:
    """Embeddings, encoder and one head."""
    tokens = Embeddings(config)
    flow = (
        FlowBuilder()
        .input("attention_mask", "token_type_ids", "position_ids")
        .through(embeddings(config, tokens))
        .using("token_type_ids", "position_ids")
        .fork(padding_bias)
        .using("attention_mask")
        .tag("mask")
        .through(encoder(config))
        .using("mask")
        .tag("encoder")
    )
    match head:
        case Head.BASE:
            if config.pooler:
                flow.fork(pooler(config)).tag("pooler")
        case Head.SEQUENCE_CLASSIFICATION:
            classify_pooled(flow, config)
        case Head.TOKEN_CLASSIFICATION:
            classify_tokens(flow, config)
        case Head.QUESTION_ANSWERING:
            answer(flow, config)
        case Head.MASKED_LM:
            predict_words(flow, config, Decoder(config, tokens.word))
    return flow.label("bert").build()


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Read the config.json of a BERT checkpoint."""
    fields = Fields(raw)
    fields.refuse_decoders()
    return EncoderConfig(
        model_type="bert",
        sizes=bert_sizes(fields),
        dropout=bert_dropouts(fields),
        activation=fields.text("hidden_act", "gelu"),
        norm_eps=fields.number("layer_norm_eps", 1e-12),
        pad_token_id=fields.token_id("pad_token_id", 0),
        **fields.shared(),
    )

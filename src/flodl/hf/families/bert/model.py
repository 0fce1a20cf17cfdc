"""BERT as a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flodl.graph import Graph

from ...config import EncoderConfig, Fields, bert_dropouts, bert_sizes
from ...heads import Head
from ...parts.backbone import backbone
from ...parts.embeddings import Embeddings
from ...parts.heads import Decoder, answer, classify, classify_pooled, pooler, predict_words
from ...parts.layers import bert_encoder


def build(config: EncoderConfig, head: Head) -> Graph:
    """Embeddings, encoder and one head."""
    tokens = Embeddings(config)
    flow = backbone(config, tokens, bert_encoder(config))
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

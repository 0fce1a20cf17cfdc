"""RoBERTa as a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from flodl.core import HFError
from flodl.graph import FlowBuilder, Graph

from ...config import EncoderConfig, Fields, bert_dropouts, bert_sizes
from ...heads import Head
from ...parts.backbone import backbone
from ...parts.embeddings import Embeddings
from ...parts.heads import Decoder, answer, classify, first_token, pooler, predict_words
from ...parts.layers import bert_encoder


def build(config: EncoderConfig, head: Head) -> Graph:
    """Embeddings, encoder and one head."""
    tokens = Embeddings(config, numbering="after_padding")
    flow = backbone(config, tokens, bert_encoder(config))
    match head:
        case Head.BASE:
            if config.pooler:
                flow.fork(pooler(config)).using("packed").tag("pooler")
        case Head.SEQUENCE_CLASSIFICATION:
            flow.through(classifier(config)).using("packed").tag("classifier")
        case Head.TOKEN_CLASSIFICATION:
            classify(flow, config, config.dropout.classifier)
        case Head.QUESTION_ANSWERING:
            answer(flow, config)
        case Head.MASKED_LM:
            predict_words(flow, config, Decoder(tokens.word, tied=config.tied), activation="gelu")
    return flow.label(config.model_type).build()


def classifier(config: EncoderConfig) -> Graph:
    """Two linear layers on the first token."""
    hidden, dropout = config.sizes.hidden, config.dropout.classifier
    return (
        FlowBuilder()
        .input("packed")
        .through(first_token)
        .using("packed")
        .through(nn.Dropout(dropout))
        .through(nn.Linear(hidden, hidden))
        .through(nn.Tanh())
        .through(nn.Dropout(dropout))
        .through(nn.Linear(hidden, config.num_labels))
        .label("classifier")
        .build()
    )


def read_config(raw: Mapping[str, Any], model_type: str = "roberta") -> EncoderConfig:
    """Read the config.json of a RoBERTa checkpoint."""
    fields = Fields(raw)
    fields.refuse_decoders()
    pad = fields.token_id("pad_token_id", 1)
    if pad is None or pad < 0:
        raise HFError(
            f"config.json: pad_token_id is {pad}. {model_type} counts positions from it; set it to 1."
        )
    return EncoderConfig(
        model_type=model_type,
        sizes=bert_sizes(fields),
        dropout=bert_dropouts(fields),
        activation=fields.text("hidden_act", "gelu"),
        norm_eps=fields.number("layer_norm_eps", 1e-12),
        pad_token_id=pad,
        **fields.shared(),
    )

"""The chain that BERT and its descendants share: embeddings, mask, encoder."""

from __future__ import annotations

from flodl.graph import FlowBuilder, Graph

from ..config import EncoderConfig
from .attention import padding_bias
from .embeddings import Embeddings, embeddings


def backbone(config: EncoderConfig, tokens: Embeddings, encoder: Graph) -> FlowBuilder:
    """Start the chain of a model; its stream is the last hidden states."""
    names = tokens.input_names
    flow = FlowBuilder().input("attention_mask", *names).through(embeddings(config, tokens))
    return (
        flow.using(*names)
        .fork(padding_bias)
        .using("attention_mask")
        .tag("mask")
        .through(encoder)
        .using("mask")
        .tag("encoder")
    )

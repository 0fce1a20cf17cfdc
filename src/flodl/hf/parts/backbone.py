"""The chain that BERT and its descendants share: embeddings, mask, encoder."""

from __future__ import annotations

from flodl.graph import FlowBuilder, Graph

from ..config import EncoderConfig
from .attention import padding_bias
from .embeddings import Embeddings, embeddings
from .packed import Packing


def backbone(config: EncoderConfig, tokens: Embeddings, encoder: Graph) -> FlowBuilder:
    """Start the chain of a model; its stream is the last hidden states."""
    names = tokens.input_names
    flow = FlowBuilder().input("attention_mask", *names).through(embeddings(config, tokens)).using(*names)
    read_packed(flow, Packing(config, positions=tokens.longest))
    return (
        flow.fork(padding_bias)
        .using("attention_mask", "packed")
        .tag("mask")
        .through(encoder)
        .using("mask")
        .tag("encoder")
    )


def read_packed(flow: FlowBuilder, packing: Packing) -> None:
    """Declare the inputs of packed batches, and tag what `packing` reads from them as "packed"."""
    positions = ["position_ids"] * packing.numbered
    flow.input("cu_seqlens", "longest").fork(packing)
    flow.using("cu_seqlens", "longest", "attention_mask", *positions).tag("packed")

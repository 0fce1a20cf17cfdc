"""ModernBERT's initial weights: truncated normal, narrower where a layer writes to the stream."""

from __future__ import annotations

import math
from collections.abc import Container

import torch
from torch import nn

from flodl.graph import Graph

from ...config import EncoderConfig
from ...parts.initialization import initialize as initialize_normal

_OUTPUTS = (
    "attention.linear_1",
    "feed_forward.linear_2",
    "pooler.linear_1",
    "transform.linear_1",
    "lm_head.",
)


@torch.no_grad()
def initialize(graph: Graph, config: EncoderConfig, *, only: Container[str] | None = None) -> None:
    """Draw random weights; reset biases and norms."""
    initialize_normal(graph, config, only=only)
    for prefix, module in graph.named_modules():
        name = f"{prefix}.weight"
        if not isinstance(module, nn.Linear | nn.Embedding) or (only is not None and name not in only):
            continue
        if config.tied and prefix == "lm_head.decoder_1":
            continue
        std = _std(prefix, config)
        cutoff = config.options.initializer_cutoff * std
        nn.init.trunc_normal_(module.weight, 0.0, std, -cutoff, cutoff)


def _std(name: str, config: EncoderConfig) -> float:
    if name in ("classifier", "qa_outputs"):
        return 1 / math.sqrt(config.sizes.hidden)
    writes = any(part in name for part in _OUTPUTS)
    return (
        config.initializer_range / math.sqrt(2.0 * config.sizes.layers)
        if writes
        else config.initializer_range
    )

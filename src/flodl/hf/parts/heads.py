"""Heads: what turns hidden states into logits. Each function adds nodes to a chain."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from flodl.graph import FlowBuilder, Graph

from ..config import EncoderConfig
from .activation import Activation


def first_token(hidden: Tensor) -> Tensor:
    """The hidden state of the first token: [batch, length, hidden] to [batch, hidden]."""
    return hidden[:, 0]


def pooler(config: EncoderConfig) -> Graph:
    """Summarize a sequence by its first token: linear, tanh."""
    hidden = config.sizes.hidden
    return (
        FlowBuilder(first_token).through(nn.Linear(hidden, hidden)).through(nn.Tanh()).label("pooler").build()
    )


def classify_pooled(flow: FlowBuilder, config: EncoderConfig) -> None:
    """Sequence classification on the pooled first token."""
    flow.through(pooler(config)).tag("pooler")
    classify_tokens(flow, config)


def classify_tokens(flow: FlowBuilder, config: EncoderConfig) -> None:
    """Dropout and a linear layer, for each token or for whatever the stream is."""
    flow.through(nn.Dropout(config.dropout.classifier))
    flow.through(nn.Linear(config.sizes.hidden, config.num_labels)).tag("classifier")


def answer(flow: FlowBuilder, config: EncoderConfig, *, dropout: float = 0.0) -> None:
    """Question answering: a score for each token to start and to end the answer."""
    if dropout:
        flow.through(nn.Dropout(dropout))
    flow.through(nn.Linear(config.sizes.hidden, 2)).tag("qa_outputs").through(start_and_end)


def start_and_end(scores: Tensor) -> tuple[Tensor, Tensor]:
    """[batch, length, 2] to the logits of the start and of the end, each [batch, length]."""
    start, end = scores.unbind(dim=-1)
    return start, end


def select_tokens(hidden: Tensor, *, positions: Tensor | None) -> Tensor:
    """Keep the hidden states at some positions of the batch: [batch, length, hidden] to [n, hidden].

    The vocabulary is large, so logits are computed only where somebody reads them. `positions` holds indices
    into batch · length; its size is fixed by the caller, so nothing is read on the host. None keeps all.
    """
    return hidden if positions is None else hidden.flatten(0, 1).index_select(0, positions)


class Decoder(nn.Linear):
    """The projection to the vocabulary; its weight is the word embedding, unless the config unties them.

    Checkpoints with untied weights have a second bias that no computation reads. `spare_bias` keeps it.
    """

    spare_bias: Tensor

    def __init__(
        self, config: EncoderConfig, word: nn.Embedding, *, bias: bool = True, spare: bool = True
    ) -> None:
        vocab, width = word.weight.shape
        super().__init__(width, vocab, bias=bias)
        if bias:
            nn.init.zeros_(self.bias)
        if config.tied:
            self.weight = word.weight
        elif spare:
            self.register_buffer("spare_bias", torch.zeros(vocab))


def predict_words(
    flow: FlowBuilder, config: EncoderConfig, decoder: Decoder, *, activation: str | None = None
) -> None:
    """Masked language modeling: transform, then project to the vocabulary, at the selected positions."""
    flow.input("positions").through(select_tokens).using("positions")
    flow.through(
        FlowBuilder(nn.Linear(config.sizes.hidden, decoder.in_features))
        .through(Activation(activation or config.activation))
        .through(nn.LayerNorm(decoder.in_features, eps=config.norm_eps))
        .through(decoder)
        .label("lm_head")
        .build()
    )


AddHead = Callable[[FlowBuilder, EncoderConfig], None]

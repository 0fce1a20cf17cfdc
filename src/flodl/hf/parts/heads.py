"""Heads: what turns hidden states into logits. Each function adds nodes to a chain."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flodl.graph import FlowBuilder, Graph

from ..config import EncoderConfig
from .activation import Activation
from .packed import Packed


def first_token(hidden: Tensor, *, packed: Packed | None) -> Tensor:
    """The hidden state of the first token: [batch, length, hidden] to [batch, hidden].

    For a packed batch, that is one row for each sequence in the slot.
    """
    return hidden[:, 0] if packed is None else hidden[0].index_select(0, packed.starts)


def pooler(config: EncoderConfig, *, activation: str = "tanh", dropout: float = 0.0) -> Graph:
    """Summarize a sequence by its first token: dropout, linear, activation."""
    hidden = config.sizes.hidden
    return (
        FlowBuilder()
        .input("packed")
        .through(first_token)
        .using("packed")
        .through(nn.Dropout(dropout))
        .through(nn.Linear(hidden, hidden))
        .through(Activation(activation))
        .label("pooler")
        .build()
    )


def classify_pooled(flow: FlowBuilder, config: EncoderConfig, pool: Graph) -> None:
    """Sequence classification on the pooled first token."""
    flow.through(pool).using("packed").tag("pooler")
    classify(flow, config, config.dropout.classifier)


def classify(flow: FlowBuilder, config: EncoderConfig, dropout: float) -> None:
    """Dropout and a linear layer, for each token or for whatever the stream is."""
    flow.through(nn.Dropout(dropout))
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
    """The projection to the vocabulary; tied, its weight is the word embedding.

    Untied checkpoints of some families have a second bias that no computation reads: `spare_bias` keeps it.
    """

    spare_bias: Tensor

    def __init__(self, word: nn.Embedding, *, tied: bool, bias: bool = True, spare: bool = True) -> None:
        vocab, width = word.weight.shape
        super().__init__(width, vocab, bias=bias)
        if bias:
            nn.init.zeros_(self.bias)
        if tied:
            self.weight = word.weight
        elif spare:
            self.register_buffer("spare_bias", torch.zeros(vocab))


def predict_words(
    flow: FlowBuilder,
    config: EncoderConfig,
    decoder: Decoder,
    *,
    activation: str | None = None,
    bias: bool = True,
    norm_bias: bool = True,
) -> None:
    """Masked language modeling: transform, then project to the vocabulary, at the selected positions."""
    width = decoder.in_features
    flow.input("positions").through(select_tokens).using("positions")
    flow.through(
        FlowBuilder(nn.Linear(config.sizes.hidden, width, bias=bias))
        .through(Activation(activation or config.activation))
        .through(nn.LayerNorm(width, eps=config.norm_eps, bias=norm_bias))
        .through(decoder)
        .label("lm_head")
        .build()
    )

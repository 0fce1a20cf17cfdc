"""Embeddings of words, positions and token types, added up."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from flodl.core import HFError
from flodl.graph import FlowBuilder, Graph

from ..config import EncoderConfig

Numbering = Literal["from_zero", "after_padding", "none"]


class Embeddings(nn.Module):
    """Look up words, positions and token types, and add them.

    `numbering` says how positions are counted if the caller passes none: from zero, as BERT does, or from
    the id after the padding token, over real tokens only, as RoBERTa does.
    """

    def __init__(self, config: EncoderConfig, *, numbering: Numbering = "from_zero") -> None:
        super().__init__()
        sizes, pad = config.sizes, _padding(config)
        self.numbering = numbering
        self.word = nn.Embedding(sizes.vocab, sizes.embedding, padding_idx=pad)
        self.position: nn.Embedding | None = None
        self.token_type: nn.Embedding | None = None
        if numbering != "none":
            position_padding = pad if numbering == "after_padding" else None
            self.position = nn.Embedding(sizes.positions, sizes.embedding, padding_idx=position_padding)
        if sizes.token_types:
            self.token_type = nn.Embedding(sizes.token_types, sizes.embedding)

    def forward(
        self, input_ids: Tensor, *, token_type_ids: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        total: Tensor = self.word(input_ids)
        if self.token_type is not None:
            first = token_type_ids is None
            total = total + (self.token_type.weight[0] if first else self.token_type(token_type_ids))
        if self.position is None:
            return total
        if position_ids is not None:
            positions: Tensor = self.position(position_ids)
            return total + positions
        length = input_ids.shape[-1]
        self._check_length(length)
        if self.numbering == "from_zero":
            return total + self.position.weight[:length]
        positions = self.position(self._positions_after_padding(input_ids))
        return total + positions

    @property
    def longest(self) -> int | None:
        """The number of positions for tokens; None without a limit."""
        if self.position is None:
            return None
        first = 0 if self.numbering == "from_zero" else (self.word.padding_idx or 0) + 1
        return self.position.num_embeddings - first

    @property
    def input_names(self) -> tuple[str, ...]:
        """What a caller may pass besides the ids of the words."""
        tables = {"token_type_ids": self.token_type, "position_ids": self.position}
        return tuple(name for name, table in tables.items() if table is not None)

    def _positions_after_padding(self, input_ids: Tensor) -> Tensor:
        padding = self.word.padding_idx
        assert padding is not None
        real = input_ids.ne(padding).int()
        return (torch.cumsum(real, dim=-1) * real).long() + padding

    def _check_length(self, length: int) -> None:
        longest = self.longest
        if longest is not None and length > longest:
            raise HFError(
                f"the batch has sequences of {length} tokens, but the model has positions for {longest}. "
                "Truncate the texts, or split them."
            )


def embeddings(config: EncoderConfig, tokens: Embeddings) -> Graph:
    """The embedding layer: look up, normalize, drop out."""
    names = tokens.input_names
    return (
        FlowBuilder()
        .input(*names)
        .through(tokens)
        .using(*names)
        .tag("tokens")
        .through(nn.LayerNorm(config.sizes.embedding, eps=config.norm_eps))
        .through(nn.Dropout(config.dropout.hidden))
        .label("embeddings")
        .build()
    )


def _padding(config: EncoderConfig) -> int | None:
    pad, vocab = config.pad_token_id, config.sizes.vocab
    if pad is not None and not -vocab <= pad < vocab:
        raise HFError(
            f"config.json: pad_token_id is {pad}, but the vocabulary has {vocab} tokens. "
            "One of the two numbers is wrong."
        )
    return pad

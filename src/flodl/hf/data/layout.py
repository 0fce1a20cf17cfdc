"""`Layout`: what the batches of a model need to know about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..heads import Head
from ..text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from ..models import PretrainedModel

# Position ids of these families start after the id of the padding token.
_POSITIONS_AFTER_PAD = ("roberta", "xlm-roberta")


@dataclass(frozen=True)
class Layout:
    """How texts become the inputs of a model."""

    head: Head
    model_type: str
    pad_id: int
    pads_left: bool
    has_token_types: bool
    first_position: int
    num_positions: int | None
    vocab_size: int
    dtype: torch.dtype

    @classmethod
    def of(cls, model: PretrainedModel) -> Layout:
        """Return the layout of a model and its tokenizer."""
        tokenizer: Tokenizer = model.tokenizer
        after_pad = model.config.model_type in _POSITIONS_AFTER_PAD
        pad = model.config.pad_token_id
        return cls(
            model.head,
            model.config.model_type,
            tokenizer.pad_id,
            tokenizer.padding_side == "left",
            tokenizer.limits.has_token_types,
            (0 if pad is None else pad) + 1 if after_pad else 0,
            tokenizer.max_length,
            model.config.sizes.vocab,
            model.dtype,
        )

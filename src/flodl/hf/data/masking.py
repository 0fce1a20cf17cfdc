"""Random masks for masked language modeling, from the keys of the samples alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flodl.core import HFError
from flodl.data import Chance

from ..losses import IGNORED
from ..text.tokenizer import Tokenizer
from .tokens import Array

# Each kind of decision has its own random numbers.
_REPLACE, _OTHER = 0x1D872B41, 0x5851F42D


@dataclass(frozen=True)
class Masking:
    """Masks a fraction of the tokens: of those, 80% become the mask token, 10% a random one.

    At least one token of each text is masked, as in the original BERT. The choice depends only on the key of
    the sample, which the loader derives from seed, epoch and position: it does not change with the batch.
    """

    probability: float
    mask_id: int
    vocab_size: int
    special: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer, probability: float) -> Masking:
        """Return the masking for a tokenizer."""
        if not isinstance(probability, float | int) or not 0 < probability < 1:
            raise HFError(f"mask_probability={probability!r}; expected a number between 0 and 1.")
        if tokenizer.mask.id is None:
            raise HFError("the tokenizer has no mask token, so nothing can be masked. Use another tokenizer.")
        tokens = (getattr(tokenizer.special, name).id for name in ("pad", "unk", "cls", "sep", "mask"))
        size = tokenizer.limits.vocab_size or tokenizer.vocab_size
        return cls(
            float(probability), tokenizer.mask.id, size, tuple(token for token in tokens if token is not None)
        )

    def apply(self, ids: Array, lengths: Array, keys: Tensor) -> tuple[Array, Array]:
        """Return the masked ids of texts [n, width], whose tokens are on the left, and the labels."""
        width = ids.shape[1]
        can = (np.arange(width) < lengths[:, None]) & ~np.isin(ids, self.special)
        drawn = Chance(keys).uniform(width).numpy()
        chosen = (drawn < self.probability) & can
        # The smallest number of a text is chosen even if it is above the probability.
        lowest = np.where(can, drawn, np.inf).argmin(axis=1)
        rows = np.flatnonzero(can.any(axis=1))
        chosen[rows, lowest[rows]] = True
        action = Chance(keys ^ _REPLACE).uniform(width).numpy()
        others = Chance(keys ^ _OTHER).integers(self.vocab_size, width).numpy()
        masked = np.where(action < 0.8, self.mask_id, np.where(action < 0.9, others, ids))
        return np.where(chosen, masked, ids), np.where(chosen, ids, IGNORED)


def no_keys(count: int) -> Tensor:
    """Return keys for samples outside an epoch."""
    return torch.arange(count)

"""Batches of tokenized texts, packed into slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..losses import IGNORED
from ..packing import Slot, fill_row, pack_flat
from .budgets import batch_lengths, choose_sizes, waste
from .layout import Layout
from .masking import Masking
from .targets import Targets
from .tokens import Array, Tokens

# Families whose attention needs a bias, which the kernel for packed sentences does not take.
_NEEDS_BIAS = ("deberta-v2",)
_HALF = (torch.bfloat16, torch.float16)
# Slots are multiples of the smaller number where batches have few tokens.
_MULTIPLES, _FEW_TOKENS = (32, 64), 1024
# A step is recorded, and possibly compiled, for every slot.
_MOST_SLOTS = 4


def why_padded(layout: Layout, device: torch.device, precision: str | None) -> str:
    """Return why batches are padded although packing is automatic; "" if they are packed."""
    if device.type != "cuda":
        return f"packing gains nothing on {device.type}"
    if layout.model_type in _NEEDS_BIAS:
        return f"the attention of {layout.model_type} has a bias, so packing gains nothing"
    if layout.dtype not in _HALF and precision not in ("bf16", "fp16"):
        return "attention of packed texts is fast only in bf16 and fp16, and the model computes in float32"
    return ""


@dataclass(frozen=True)
class Slots:
    """The slots of a loader, the smallest first, and what fraction of their tokens is padding."""

    slots: tuple[Slot, ...]
    waste: float
    multiple: int

    @classmethod
    def choose(cls, lengths: Array, batch_size: int, most_positions: int | None) -> Slots:
        """Choose at most four slots for random batches of texts of these lengths."""
        needed = batch_lengths(lengths, batch_size).sum(axis=1)
        multiple = _MULTIPLES[int(needed.mean() >= _FEW_TOKENS)]
        longest = -(-int(lengths.max()) // 16) * 16
        longest = longest if most_positions is None else min(longest, most_positions)
        least = -(-longest // multiple) * multiple
        sizes = sorted(
            {max(size, least) for size in choose_sizes(needed, multiple=multiple, most=_MOST_SLOTS)}
        )
        slots = tuple(Slot(tokens=size, sequences=batch_size, longest=longest) for size in sizes)
        return cls(slots, waste(needed, sizes), multiple)

    def smallest(self, tokens: int) -> Slot:
        """Return the smallest slot that fits.

        A batch that is larger than all of them is rare. It gets a slot of its own, like the last batch of an
        epoch if it has few sentences: a step that is recorded for a slot does not run with fewer.
        """
        for slot in self.slots:
            if tokens <= slot.tokens <= 2 * tokens:
                return slot
        first = self.slots[0]
        size = max(
            -(-tokens // self.multiple) * self.multiple, -(-first.longest // self.multiple) * self.multiple
        )
        return Slot(tokens=size, sequences=first.sequences, longest=first.longest)

    def __str__(self) -> str:
        sizes = [slot.tokens for slot in self.slots]
        which = (
            f"{len(sizes)} slots of {sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"a slot of {sizes[0]}"
        )
        return f"{which} tokens, {self.waste:.1%} of them padding"


@dataclass(frozen=True)
class Packed:
    """Puts the texts of a batch one after the other into the smallest slot that fits."""

    tokens: Tokens
    targets: Targets
    layout: Layout
    slots: Slots
    masking: Masking | None = None

    def make(self, indices: Array, keys: Tensor) -> Any:
        """Return the inputs of a model, and labels if there are any."""
        starts = self.tokens.offsets[indices]
        lengths = self.tokens.offsets[indices + 1] - starts
        ends = np.cumsum(lengths)
        slot = self.slots.smallest(int(ends[-1]))
        # The tokens of the texts in the flat arrays, one text after the other.
        where = np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1])
        ids, labels = self.tokens.ids[where], None
        if self.masking is not None:
            ids, targets = self._masked(ids, lengths, keys)
            labels = fill_row(targets, slot, IGNORED)
        types = None
        if self.layout.has_token_types:
            types = np.zeros(0, np.uint8) if self.tokens.types is None else self.tokens.types[where]
        inputs = pack_flat(
            ids,
            lengths.tolist(),
            slot,
            pad_id=self.layout.pad_id,
            first_position=self.layout.first_position,
            token_types=types,
        )
        if self.masking is None:
            labels = self.targets.packed(indices, where, slot)
        return (inputs,) if labels is None else (inputs, labels)

    def _masked(self, ids: Array, lengths: Array, keys: Tensor) -> tuple[Array, Array]:
        assert self.masking is not None
        is_token = np.arange(int(lengths.max())) < lengths[:, None]
        rows = np.zeros(is_token.shape, np.int64)
        rows[is_token] = ids
        masked, labels = self.masking.apply(rows, lengths, keys)
        return masked[is_token], labels[is_token]

"""`TextDataset`: tokenized texts with labels, for `Loader` and `Trainer`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from flodl.core import HFError
from flodl.core.formats import format_bytes
from flodl.core.plain import short_hash
from flodl.data import LengthGroupedSampler

from .budgets import batch_lengths, choose_sizes
from .collate import Padded
from .layout import Layout
from .masking import Masking
from .spans import Questions
from .targets import NoTargets, Targets
from .tokens import Array, Tokens

Pack = Literal["auto"] | bool


@dataclass(frozen=True, eq=False)
class TextDataset:
    """Tokenized texts with their labels; `model.dataset(…)` makes it from raw text.

    Pass it to `Loader` or `Trainer.fit` with a batch size. Each batch is `(inputs, labels)`, the arguments of
    `model.compute_loss`. Batches are padded to their longest text, or packed (see `pack` of `model.dataset`).
    """

    tokens: Tokens
    layout: Layout
    targets: Targets = field(default_factory=NoTargets)
    labels: tuple[str, ...] = ()
    masking: Masking | None = None
    questions: Questions | None = None
    pack: Pack = "auto"
    group_by_length: bool = False
    precision: str | None = None
    content: str = field(init=False)

    def __post_init__(self) -> None:
        if self.pack not in ("auto", True, False):
            raise HFError(f"pack={self.pack!r}; expected 'auto', True or False.")
        if not len(self.tokens):
            raise HFError("there are no texts. Pass at least one.")
        object.__setattr__(self, "content", short_hash(self.tokens.ids[: 1 << 16].tobytes()))

    @property
    def num_samples(self) -> int:
        """The number of texts, or of windows of long texts."""
        return len(self.tokens)

    @property
    def lengths(self) -> Array:
        """The number of tokens of each text, special tokens included."""
        return self.tokens.lengths

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        lengths, size = self.lengths, format_bytes(self.tokens.num_bytes)
        return (
            f"TextDataset({len(self)} texts, {int(lengths.sum())} tokens, {lengths.min()} to {lengths.max()} "
            f"each, {size})"
        )

    def batch(self, indices: Any) -> Any:
        """Return these texts as a padded batch, on the CPU."""
        chosen = np.atleast_1d(np.asarray(indices, np.int64))
        if len(chosen) and not -len(self) <= chosen.min() <= chosen.max() < len(self):
            raise HFError(f"there are {len(self)} texts; expected indices from 0 to {len(self) - 1}.")
        return self._padded().make(chosen % len(self), torch.from_numpy(chosen))

    def with_precision(self, precision: str) -> TextDataset:
        """Return the same data for training with this precision, which decides whether texts are packed."""
        return self if self.precision is not None else replace(self, precision=precision)

    def batch_maker(self, batch_size: int, device: torch.device) -> TextBatches:
        """Return what makes batches of this size; `Loader` calls it."""
        sampler = LengthGroupedSampler(self.lengths, batch_size) if self.group_by_length else None
        widths: list[int] = []
        how = "each batch is padded to its longest text"
        if device.type == "cuda":
            # A few widths, so that a captured step fits all batches.
            longest = batch_lengths(self.lengths, batch_size, sampler).max(axis=1)
            widths = choose_sizes(longest, largest=int(self.lengths.max()), multiple=8)
            most = self.layout.num_positions
            widths = sorted({width if most is None else min(width, most) for width in widths})
            how = f"batches are padded to {len(widths)} widths up to {widths[-1]} tokens"
        return TextBatches(self, self._padded(widths), f"texts are batched on the host: {how}", sampler)

    def _padded(self, widths: list[int] | None = None) -> Padded:
        return Padded(self.tokens, self.targets, self.layout, self.masking, widths or ())


class TextBatches:
    """Makes the batches of one loader."""

    def __init__(
        self, source: TextDataset, collate: Padded, reason: str, sampler: LengthGroupedSampler | None
    ) -> None:
        self.source, self.collate, self.reason, self.sampler = source, collate, reason, sampler
        self.num_samples = source.num_samples

    @property
    def description(self) -> dict[str, Any]:
        """What is read, for the record of a run."""
        return {"source": repr(self.source), "content": self.source.content}

    def make(self, indices: Tensor, keys: Tensor) -> Any:
        """Return these texts as a batch."""
        return self.collate.make(indices.numpy(), keys)

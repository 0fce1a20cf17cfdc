"""`TextDataset`: tokenized texts with labels, for `Loader` and `Trainer`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from torch import Tensor

from flodl.core import HFError
from flodl.core.contents import content_hash
from flodl.core.formats import format_bytes
from flodl.core.plain import short_hash
from flodl.data import LengthGroupedSampler

from .budgets import MOST_SIZES, batch_lengths, choose_sizes
from .collate import Padded
from .layout import Layout
from .masking import Masking
from .packed import Packed, Slots, why_padded
from .spans import Questions
from .targets import NoTargets, Targets
from .tokens import Array, Tokens
from .vocabulary import UsedVocabulary

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
    vocabulary: UsedVocabulary | None = None
    content: str = field(init=False)

    def __post_init__(self) -> None:
        if self.pack not in ("auto", True, False):
            raise HFError(f"pack={self.pack!r}; expected 'auto', True or False.")
        if self.group_by_length not in (True, False):
            raise HFError(f"group_by_length={self.group_by_length!r}; expected True or False.")
        if not len(self.tokens):
            raise HFError("there are no texts. Pass at least one.")
        highest = int(self.tokens.ids.max())
        if highest >= self.layout.vocab_size:
            raise HFError(
                f"a text has the token id {highest}, but the model has {self.layout.vocab_size} tokens "
                "(vocab_size). The tokenizer does not belong to the model."
            )
        if self.pack is True and self.group_by_length:
            raise HFError(
                "pack=True and group_by_length=True cannot be combined: packed texts are not padded."
            )
        stored = [*vars(self.tokens).values(), *vars(self.targets).values()]
        hashes = [content_hash(array) for array in stored if isinstance(array, np.ndarray)]
        answers = [] if self.questions is None else [self.questions.answers]
        object.__setattr__(self, "content", short_hash(repr((hashes, self.labels, *answers)).encode()))

    @property
    def num_samples(self) -> int:
        """The number of texts, or of windows of long texts."""
        return len(self.tokens)

    @property
    def description(self) -> dict[str, Any]:
        """What is read, for the record of a run."""
        found = {"source": repr(self), "content": self.content}
        if self.pack != "auto" or self.group_by_length:
            found["batches"] = "packed" if self.pack is True else "padded"
        return found if self.masking is None else {**found, "transform": repr(self.masking)}

    @property
    def lengths(self) -> Array:
        """The number of tokens of each text, special tokens included."""
        return self.tokens.lengths

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: Any) -> NoReturn:
        raise _no_items()

    def __iter__(self) -> NoReturn:
        raise _no_items()

    def __repr__(self) -> str:
        lengths, size = self.lengths, format_bytes(self.tokens.num_bytes)
        return (
            f"TextDataset({len(self)} texts, {int(lengths.sum())} tokens, {lengths.min()} to {lengths.max()} "
            f"each, {size})"
        )

    def batch(self, indices: Any) -> Any:
        """Return these texts as a padded batch, on the CPU."""
        try:
            chosen = np.atleast_1d(np.asarray(indices, np.int64))
        except (TypeError, ValueError) as error:
            raise HFError(
                f"indices is {indices!r:.60}; expected the indices of texts, such as [0, 1]."
            ) from error
        if len(chosen) and not -len(self) <= chosen.min() <= chosen.max() < len(self):
            raise HFError(f"there are {len(self)} texts; expected indices from 0 to {len(self) - 1}.")
        return self._padded().make(chosen % len(self), torch.from_numpy(chosen))

    def with_precision(self, precision: str) -> TextDataset:
        """Return the same data for training with this precision, which decides whether texts are packed."""
        return self if self.precision is not None else replace(self, precision=precision)

    def check_model(self, model: Any) -> None:
        """Raise if the data was made with a model that has other tokens or labels; a `Trainer` calls it."""
        from ..models import PretrainedModel

        if self.vocabulary is not None and isinstance(model, PretrainedModel):
            self.vocabulary.check(model)

    def batch_maker(self, batch_size: int, device: torch.device) -> TextBatches:
        """Return what makes batches of this size; `Loader` calls it."""
        why_not = self._why_padded(device)
        if not why_not:
            slots = Slots.choose(self.lengths, batch_size, self.layout.num_positions)
            packed = Packed(self.tokens, self.targets, self.layout, slots, self.masking)
            return TextBatches(self, packed, f"texts are packed on the host into {slots}", None)
        sampler = LengthGroupedSampler(self.lengths, batch_size) if self.group_by_length else None
        widths: tuple[int, ...] = ()
        how = "each batch is padded to its longest text"
        if device.type == "cuda":
            # A few widths, so that a captured step fits all batches.
            longest = batch_lengths(self.lengths, batch_size, sampler).max(axis=1)
            widths = self._allowed(choose_sizes(longest, multiple=8, most=MOST_SIZES - 1))
            how = f"batches are padded to {len(widths)} widths up to {widths[-1]} tokens"
        reason = f"texts are batched on the host: {how}; {why_not}"
        return TextBatches(self, self._padded(widths), reason, sampler)

    def _why_padded(self, device: torch.device) -> str:
        """Return why batches are not packed; "" if they are."""
        if self.pack is False:
            return "pack=False was requested"
        if self.group_by_length:
            return "group_by_length=True was requested"
        return "" if self.pack is True else why_padded(self.layout, device, self.precision)

    def _allowed(self, widths: list[int]) -> tuple[int, ...]:
        """Add the longest text to the widths, and cut them where the model has no more positions."""
        most = self.layout.num_positions
        widths = [*widths, -(-int(self.lengths.max()) // 8) * 8]
        return tuple(sorted({width if most is None else min(width, most) for width in widths}))

    def _padded(self, widths: tuple[int, ...] = ()) -> Padded:
        return Padded(self.tokens, self.targets, self.layout, self.masking, widths)


class TextBatches:
    """Makes the batches of one loader."""

    def __init__(
        self, source: TextDataset, collate: Padded | Packed, reason: str, sampler: LengthGroupedSampler | None
    ) -> None:
        self.source, self.collate, self.reason, self.sampler = source, collate, reason, sampler
        self.num_samples = source.num_samples

    @property
    def is_random(self) -> bool:
        """Whether batches differ between seeds: those with random masks."""
        return self.source.masking is not None

    @property
    def description(self) -> dict[str, Any]:
        """What is read, for the record of a run, with the form of the batches, even if automatic."""
        form = "packed" if isinstance(self.collate, Packed) else "padded"
        return {**self.source.description, "batches": form}

    def make(self, indices: Tensor, keys: Tensor) -> Any:
        """Return these texts as a batch."""
        return self.collate.make(indices.numpy(), keys)


def _no_items() -> HFError:
    return HFError(
        "a text dataset has no single items: it makes whole batches. Pass it to Trainer.fit or "
        "Loader(dataset, batch_size), and split the texts before model.dataset(…). dataset.batch([0, 1]) "
        "returns the batch of some texts."
    )

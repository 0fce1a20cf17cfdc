"""`Slot`: the fixed size of a packed batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flodl.core import HFError
from flodl.core.integers import as_integer, is_integer

# Kernels are fastest, and slots few, if the number of tokens is a multiple of this.
MULTIPLE = 32


@dataclass(frozen=True)
class Slot:
    """The fixed size of a packed batch: all batches in a slot have tensors of the same shapes.

    >>> slot = Slot(tokens=768, sequences=32, longest=64)
    >>> slot.num_pieces, slot.num_boundaries, slot.fits([60, 9, 33])
    (12, 45, True)
    """

    tokens: int
    """The number of tokens, a multiple of 32; what the sentences leave free is filled with padding."""
    sequences: int
    """The largest number of sentences, and the number of rows of pooled outputs."""
    longest: int
    """The largest number of tokens in a sentence, at most the number of positions that the model has."""

    def __post_init__(self) -> None:
        for name in ("tokens", "sequences", "longest"):
            object.__setattr__(self, name, value := as_integer(getattr(self, name)))
            if not is_integer(value, at_least=1):
                raise HFError(f"Slot: {name} is {value!r}; expected an integer of at least 1.")
        if self.tokens % MULTIPLE:
            better = -(-self.tokens // MULTIPLE) * MULTIPLE
            raise HFError(
                f"Slot: tokens is {self.tokens}; expected a multiple of {MULTIPLE}, such as {better}."
            )
        if self.longest > self.tokens:
            raise HFError(
                f"Slot: longest is {self.longest}, but the slot has {self.tokens} tokens. Make it at most "
                f"{self.tokens}."
            )

    @property
    def num_pieces(self) -> int:
        """The number of sequences that the padding after the sentences is cut into."""
        return -(-self.tokens // self.longest)

    @property
    def num_boundaries(self) -> int:
        """The length of `cu_seqlens`."""
        return self.sequences + self.num_pieces + 1

    def fits(self, lengths: Sequence[int]) -> bool:
        """Return whether sentences of these lengths fit together."""
        return (
            len(lengths) <= self.sequences
            and sum(lengths) <= self.tokens
            and max(lengths, default=0) <= self.longest
        )

    def check(self, lengths: Sequence[int]) -> None:
        """Raise unless sentences of these lengths fit together and none is empty."""
        if len(lengths) > self.sequences:
            raise HFError(
                f"the batch has {len(lengths)} sentences, but the slot has room for {self.sequences}. Use a "
                "smaller batch or a larger slot."
            )
        for index, length in enumerate(lengths):
            if not 0 < length <= self.longest:
                raise HFError(
                    f"sentence {index} has {length} tokens; the slot takes sentences of 1 to {self.longest} "
                    "tokens. " + ("Remove it." if not length else "Truncate it or use a larger slot.")
                )
        if sum(lengths) > self.tokens:
            raise HFError(
                f"the {len(lengths)} sentences have {sum(lengths)} tokens together, but the slot has room "
                f"for {self.tokens}. Use fewer sentences or a larger slot."
            )

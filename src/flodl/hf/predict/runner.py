"""Run a model on many texts, in batches of similar length, and return the results in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from flodl.core import HFError, log
from flodl.core.formats import a_type
from flodl.core.integers import is_index

from ..text.batching import plan_batches
from ..text.progress import progress_bar
from ..text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding

T = TypeVar("T")

# Sorting more texts at once gains nothing, and their tokens need memory.
CHUNK = 16384
# What a batch costs on a CPU besides its tokens, in tokens. On a GPU, only full batches are worth it.
BATCH_COST = 64


@dataclass(frozen=True)
class Rows:
    """A batch: the encodings of its texts, the inputs of the model and what it returned."""

    encodings: Sequence[Encoding]
    inputs: dict[str, Tensor]
    output: Any
    padding_side: str

    def real(self, row: int, values: Any) -> Any:
        """Return the part of a row that is not padding."""
        length = len(self.encodings[row])
        return values[-length:] if self.padding_side == "left" else values[:length]


@dataclass(frozen=True)
class Runner:
    """A model's `forward` with the tokenizer and the sizes of batches.

    A batch has at most `batch_size` texts and `max_tokens` tokens. `progress` shows a bar always or never;
    by default, it appears on a terminal if the list takes more than a second. `takes_positions` means that
    the model returns logits only at the `positions` it receives, indices into the flattened batch.
    `mask_is_optional` means that it needs no `attention_mask` for a batch without padding. `vocab_size` is
    the number of tokens of the model.
    """

    forward: Callable[..., Any]
    tokenizer: Tokenizer
    device: torch.device | str = "cpu"
    batch_size: int = 32
    max_tokens: int = 8192
    progress: bool | None = None
    takes_positions: bool = False
    mask_is_optional: bool = False
    vocab_size: int | None = None

    def run(
        self,
        encodings: Sequence[Encoding],
        interpret: Callable[[Rows], Sequence[T]],
        *,
        token: int | None = None,
    ) -> list[T]:
        """Run encoded texts; `interpret` returns one result per row of a batch.

        With a `token`, the output of the model is that at the positions of this token, [n, …].
        """
        with progress_bar(len(encodings), show=self.progress) as advance:
            return self._run(encodings, interpret, advance, token)

    def run_texts(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None,
        interpret: Callable[[Rows], Sequence[T]],
        *,
        max_length: int | None = None,
        offsets: bool = False,
    ) -> list[T]:
        """Encode and run texts; those that are too long are truncated, with one warning."""
        results: list[T] = []
        truncated = 0
        with progress_bar(len(texts), show=self.progress) as advance:
            for part in _chunks(len(texts)):
                encodings = self.tokenizer.encode(
                    texts[part],
                    None if pairs is None else pairs[part],
                    max_length=max_length,
                    offsets=offsets,
                )
                limit = self.tokenizer.max_length if max_length is None else max_length
                truncated += sum(1 for item in encodings if len(item) == limit and item.overflowing)
                results += self._run(encodings, interpret, advance)
        if truncated:
            log.warn(f"{truncated} of {len(texts)} texts are longer than {limit} tokens; the rest is ignored")
        return results

    def _call(self, inputs: dict[str, Tensor], batch: Sequence[Encoding], token: int | None) -> Any:
        """Return the output, or only that where a token is."""
        if self.mask_is_optional and len({*map(len, batch)}) == 1:
            # Attention without a mask takes up to a quarter less time for short texts on a CPU.
            inputs = {name: value for name, value in inputs.items() if name != "attention_mask"}
        if token is None:
            return self.forward(**inputs)
        positions = inputs["input_ids"].flatten().eq(token).nonzero()[:, 0]
        if self.takes_positions:
            return torch.as_tensor(self.forward(**inputs, positions=positions))
        return torch.as_tensor(self.forward(**inputs)).flatten(0, 1)[positions]

    def _run(
        self,
        encodings: Sequence[Encoding],
        interpret: Callable[[Rows], Sequence[T]],
        advance: Callable[[int], None],
        token: int | None = None,
    ) -> list[T]:
        found: dict[int, T] = {}
        lengths = [len(encoding) for encoding in encodings]
        side = self.tokenizer.padding_side
        plan = plan_batches(
            lengths,
            batch_size=self.batch_size,
            max_tokens=self.max_tokens,
            batch_cost=BATCH_COST if torch.device(self.device).type == "cpu" else None,
        )
        with torch.inference_mode():
            for indices in plan:
                batch = [encodings[index] for index in indices]
                inputs = self.tokenizer.pad(batch, device=self.device, vocab_size=self.vocab_size)
                rows = Rows(batch, inputs, self._call(inputs, batch, token), side)
                found.update(zip(indices, interpret(rows)))
                advance(len(indices))
        return [found[index] for index in range(len(encodings))]


def as_list(texts: str | Iterable[Any], name: str = "texts") -> tuple[list[Any], bool]:
    """Return a list of texts, and whether there was a single one."""
    if isinstance(texts, str):
        return [texts], True
    if isinstance(texts, bytes | Mapping | Set) or not isinstance(texts, Iterable):
        raise HFError(f"{name} is {a_type(texts)}; expected a string or a list of strings.")
    return list(texts), False


def check_top_k(top_k: Any) -> None:
    """Raise unless this is a number of results."""
    if not is_index(top_k, at_least=1):
        raise HFError(f"top_k is {top_k!r}; expected an integer of at least 1.")


def to_float(values: Tensor) -> Any:
    """Return a tensor as a NumPy array on the host, in float32 or more."""
    return (values if values.dtype == torch.float64 else values.float()).cpu().numpy()


def _chunks(count: int) -> Iterator[slice]:
    for start in range(0, count, CHUNK):
        yield slice(start, start + CHUNK)

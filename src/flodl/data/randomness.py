"""Whether the seed of a loader can change its batches."""

from __future__ import annotations

from typing import Any

from .augment.augmentation import Augmentation, flatten, ignores_chance
from .sampling.samplers import Sampler, has_fixed_indices
from .sources import Batches, Samples, Source, Stream

# Their items are what they contain.
_PLAIN = (list, tuple, range)


def depends_on_seed(source: Source, sampler: Sampler, augment: Augmentation | None) -> bool:
    """Return whether the order, or what is read and how it is augmented, may depend on the seed.

    Code of the user may draw random numbers wherever the generators are seeded for it.

    >>> import torch
    >>> from .sampling.samplers import RandomSampler, SequentialSampler
    >>> from .sources import open_source
    >>> source, _ = open_source(torch.zeros(4, 2))
    >>> depends_on_seed(source, RandomSampler(), None), depends_on_seed(source, SequentialSampler(), None)
    (True, False)
    """
    is_ordered = not isinstance(source, Stream) and not has_fixed_indices(sampler)
    return is_ordered or _draws(source) or any(map(_is_random, flatten(augment)))


def _draws(source: Any) -> bool:
    """Return whether samples may be created with random numbers, or drawn from a shuffle buffer."""
    if isinstance(source, Batches):
        return bool(getattr(source.maker, "is_random", True))
    if not isinstance(source, Samples | Stream):
        return False  # rows are gathered as they are
    if source.transform is not None or source.collate is not None:
        return True
    if isinstance(source, Samples):
        return type(source.dataset) not in _PLAIN
    return bool(source.buffer) or type(source.source) not in _PLAIN


def _is_random(augment: Augmentation) -> bool:
    return not ignores_chance(augment) and bool(getattr(augment, "is_random", True))

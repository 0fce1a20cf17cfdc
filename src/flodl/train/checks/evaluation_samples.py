"""Evaluation loaders that leave out samples, or draw some of them several times."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import DataLoader, WeightedRandomSampler

from flodl.core.formats import a_type
from flodl.data import Loader, WeightedSampler


def uncounted_samples(data: Any) -> Iterator[str]:
    """Yield a warning if an evaluation over a loader would not count each sample once."""
    if not isinstance(data, Loader | DataLoader):
        return
    count = _num_samples(data)
    dropped = (count or 0) % (data.batch_size or 1)
    if data.drop_last and dropped:
        yield (
            f"the evaluation loader has drop_last=True, so {dropped} of {count} samples are left out of its "
            "metrics. Leave drop_last out: a smaller last batch is weighted by its samples."
        )
    sampler = _sampler_of(data)
    if isinstance(sampler, WeightedSampler | WeightedRandomSampler) and _draws(sampler):
        yield (
            f"the evaluation loader has {a_type(sampler)}, which draws samples by their weights, so "
            "its metrics are not those of the data itself. Leave the sampler out: it belongs in the training "
            "loader."
        )


def _num_samples(data: Loader | DataLoader[Any]) -> int | None:
    if isinstance(data, Loader):
        return data.num_samples
    return len(data.sampler) if isinstance(data.sampler, Sized) else None


def _sampler_of(data: Loader | DataLoader[Any]) -> Any:
    """Return what chooses the samples of a loader, or None."""
    if isinstance(data, DataLoader):
        return getattr(data.batch_sampler, "sampler", data.sampler)
    arguments = data.arguments()
    source = arguments["source"]
    return _sampler_of(source) if isinstance(source, DataLoader) else arguments["sampler"]


def _draws(sampler: WeightedSampler | WeightedRandomSampler) -> bool:
    """Return whether chance decides which samples are read, and not only their order.

    >>> _draws(WeightedSampler([1.0, 2.0])), _draws(WeightedSampler([0.0, 1.0], replacement=False))
    (True, False)
    """
    return sampler.replacement or sampler.num_samples < int((sampler.weights > 0).sum())

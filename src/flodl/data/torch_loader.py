"""What a torch DataLoader reads and in which order, as plain data for the record of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from flodl.core.contents import Contents

THE_DATASET = "the dataset"
# The samplers that torch itself creates, with the `shuffle` that they stand for.
_OF_TORCH = (
    ({"class": "RandomSampler", "data_source": THE_DATASET, "replacement": False}, True),
    ({"class": "SequentialSampler", "data_source": THE_DATASET}, False),
    ("_InfiniteConstantSampler", None),
)
_OF_BATCH_SAMPLER = ("sampler", "batch_size", "drop_last")


def describe_order(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the sampler if the user wrote it, and the sizes: samples, or batches if the samples are unknown.

    >>> describe_order(DataLoader(range(10), batch_size=4, shuffle=True))
    {'batch_size': 4, 'drop_last': False, 'shuffle': True, 'samples': 10}
    >>> describe_order(DataLoader(range(10), batch_size=None))
    {'batch_size': None, 'shuffle': False, 'samples': None, 'batches': 10}
    """
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    found = {"batch_size": None, "sampler": Contents({id(loader.dataset): THE_DATASET}).of(sampler)}
    found = {**settled_order(found), "samples": _num_samples(loader)}
    if found["samples"] is None and (batches := _length(loader)) is not None:
        found["batches"] = batches
    return found


def settled_order(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with the user's own sampler in place of what torch makes of it.

    It may come from an earlier version of flodl, which recorded torch's BatchSampler.

    >>> inner = {"class": "SequentialSampler", "data_source": "the dataset"}
    >>> outer = {"class": "BatchSampler", "sampler": inner, "batch_size": 4, "drop_last": True}
    >>> settled_order({"sampler": outer})
    {'batch_size': 4, 'drop_last': True, 'shuffle': False}
    """
    settled = dict(found)
    sampler = settled.get("sampler")
    if isinstance(sampler, Mapping) and sampler.get("class") == "BatchSampler":
        settled |= {name: sampler[name] for name in _OF_BATCH_SAMPLER if name in sampler}
    for known, shuffle in _OF_TORCH:
        if "sampler" in settled and settled["sampler"] == known:
            del settled["sampler"]
            settled |= {} if shuffle is None else {"shuffle": shuffle}
    return settled


def order_text(loader: DataLoader[Any]) -> str:
    """Return the order and the batch size in one line.

    >>> order_text(DataLoader(range(10), batch_size=4, shuffle=True))
    'batch_size=4, shuffle=True'
    """
    found = describe_order(loader)
    shown = [f"batch_size={found['batch_size']}"]
    if "sampler" in found:
        is_wrapped = type(loader.batch_sampler) is BatchSampler
        sampler = loader.sampler if is_wrapped or loader.batch_sampler is None else loader.batch_sampler
        shown.append(type(sampler).__name__)
    elif found.get("shuffle"):
        shown.append("shuffle=True")
    return ", ".join(shown)


def _num_samples(loader: DataLoader[Any]) -> int | None:
    """Return the samples of an epoch, however large its last batch; None if only the batches are known."""
    if type(loader.batch_sampler) is not BatchSampler:
        return None
    if isinstance(loader.dataset, IterableDataset):
        return _length(loader.dataset)
    return _length(loader.batch_sampler.sampler)


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except Exception:  # it may be user code; the record of a run must not fail
        return None

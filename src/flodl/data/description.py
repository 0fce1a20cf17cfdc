"""What a loader reads and in which order, as plain data for the record of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset

from flodl.core.plain import describe, plain, short_hash

from .sources import Batches, Columns, Samples, Stream

# How many rows of each column are hashed.
NUM_ROWS = 64


def describe_source(source: Any) -> dict[str, Any]:
    """Describe a source: what it is, its size, and the functions that make its samples.

    >>> describe_source(Columns.of((torch.zeros(10, 3), torch.arange(10))))
    {'source': 'tensors: float32 10x3, int64 10', 'content': '...', 'samples': 10}
    """
    found: dict[str, Any] = {}
    if isinstance(source, Columns):
        found |= {"source": _columns(source), "content": _content(source)}
    elif isinstance(source, Batches):
        found |= source.maker.description
    elif isinstance(source, Samples):
        found["source"] = _dataset(source.dataset)
    elif isinstance(source, Stream):
        found["source"] = _dataset(source.source)
    else:
        found["source"] = _dataset(source)
    found["samples"] = source.num_samples
    for name in ("transform", "collate"):
        function = getattr(source, name, None)
        if function is not None:
            found[name] = describe(function)
    return found


def _columns(source: Columns) -> str:
    kinds = {"tensors" if isinstance(column, Tensor) else "arrays" for column in source.columns}
    shapes = [
        f"{str(column.dtype).removeprefix('torch.')} {'x'.join(map(str, column.shape))}"
        for column in source.columns
    ]
    names = source.structure.names or [""] * len(shapes)
    named = [f"{name} {shape}".strip() for name, shape in zip(names, shapes)]
    return f"{' and '.join(sorted(kinds))}: {', '.join(named)}"


def _content(source: Columns) -> str:
    """Return a hash of a few rows of every column, which tells most datasets apart."""
    step = max(1, source.num_samples // NUM_ROWS)
    rows = [_bytes(column[::step][:NUM_ROWS]) for column in source.columns]
    return short_hash(b"".join(rows))


def _bytes(rows: Any) -> bytes:
    if isinstance(rows, Tensor):
        return rows.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return np.ascontiguousarray(rows).tobytes()


def _dataset(dataset: Any) -> str:
    """Describe a dataset or an iterable by its class and its plain settings, such as root and split."""
    if isinstance(dataset, DataLoader):
        order = type(dataset.sampler if dataset.batch_sampler is None else dataset.batch_sampler).__name__
        inner = _dataset(dataset.dataset)
        workers = dataset.num_workers
        return f"DataLoader({inner}, batch_size={dataset.batch_size}, {order}, num_workers={workers})"
    if isinstance(dataset, Subset):
        chosen = short_hash(repr(list(dataset.indices)[:100_000]).encode())
        return f"Subset({_dataset(dataset.dataset)}, {len(dataset.indices)} indices {chosen})"
    if isinstance(dataset, TensorDataset):
        return f"TensorDataset({', '.join(str(plain(tensor)) for tensor in dataset.tensors)})"
    name = type(dataset).__name__
    if fingerprint := getattr(dataset, "_fingerprint", None):  # a Hugging Face dataset
        return f"{name}({getattr(dataset, 'split', None)}, fingerprint={fingerprint})"
    attributes = vars(dataset) if hasattr(dataset, "__dict__") else {}
    settings = {
        key: plain(item)
        for key, item in attributes.items()
        if not key.startswith("_") and isinstance(item, str | int | float | bool)
    }
    shown = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    return f"{name}({shown})" if shown else name

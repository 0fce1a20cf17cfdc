"""What a loader reads and in which order, as plain data for the record of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate, default_convert

from flodl.core.clock import is_reading
from flodl.core.contents import Contents, content_hash
from flodl.core.plain import describe, plain, short_hash

from .augment.augmentation import Compose, plain_function
from .dataset_files import describe_files
from .sources import Batches, Columns, Samples
from .sources.batches import BatchSource
from .sources.columns import is_array, is_columns
from .sources.source import GatherSource, columns_of_table
from .torch_loader import describe_order, order_text

# Columns up to this size are hashed as a whole, and 64 parts of larger ones.
MAX_BYTES = 1 << 22


def describe_source(source: Any) -> dict[str, Any]:
    """Describe a source: what it is, its size, and the functions that make its samples.

    >>> import torch
    >>> describe_source(Columns.of((torch.zeros(10, 3), torch.arange(10))))
    {'source': 'tensors: float32 10x3, int64 10', 'content': '...', 'samples': 10}
    """
    found: dict[str, Any] = {}
    if isinstance(source, Columns):
        found |= {"source": _columns(source), "content": _content(source.columns)}
    elif isinstance(source, Batches):
        found |= source.maker.description
    else:
        inner = getattr(source, "dataset" if isinstance(source, Samples) else "source", source)
        found |= describe_data(inner)
    if "samples" not in found:
        found["samples"] = source.num_samples
    for name in ("transform", "collate"):
        function = getattr(source, name, None)
        if function is not None:
            found[name] = Contents().of(function)
    return found


def describe_data(data: Any) -> dict[str, Any]:
    """Describe data that no loader has read yet: tensors and arrays, a dataset, a DataLoader, an iterable.

    It is not iterated, and no sample is created. Data that makes its own batches describes itself, if it has
    a `description`.
    """
    columns = Columns.of(data) if is_columns(data) else columns_of_table(data)
    if isinstance(data, Columns):
        columns = data
    if columns is not None:
        return {"source": _columns(columns), "content": _content(columns.columns)}
    described = getattr(data, "description", None) if isinstance(data, BatchSource) else None
    if isinstance(described, Mapping):
        return dict(described)
    found: dict[str, Any] = {"source": _dataset(data)}
    if isinstance(data, DataLoader):
        return found | _torch_loader(data)
    if isinstance(data, list | tuple):
        return found | {"content": Contents(max_parts=10_000).of_many(data)}
    if isinstance(data, GatherSource):
        arrays = [item for value in vars(data).values() for item in _listed(value) if is_array(item)]
        return found | {"content": _content(arrays)}
    return found | {"dataset": _settings(data)} | _files(data)


def _files(dataset: Any) -> dict[str, Any]:
    try:
        found = describe_files(dataset)
    except Exception:  # the record of a run must not fail
        return {}
    return {"files": found} if found else {}


def _settings(dataset: Any) -> Any:
    """Describe the attributes of a dataset. That of a package is known by its plain settings, if at all."""
    described = Contents().of(dataset)
    return _dataset(dataset) if described == type(dataset).__name__ else described


def _torch_loader(loader: DataLoader[Any]) -> dict[str, Any]:
    found = {"dataset": _settings(loader.dataset), **describe_order(loader), **_files(loader.dataset)}
    for name in ("collate_fn", "worker_init_fn"):
        function = getattr(loader, name, None)
        if function is not None and function not in (default_collate, default_convert):
            found[name] = Contents().of(function)
    return found


def describe_augmentation(augment: Any) -> Any:
    """Describe an augmentation, or a list of them, with the values that they read.

    >>> describe_augmentation(Compose(lambda batch, chance: batch))
    ['lambda batch, chance: batch']
    """
    if isinstance(augment, Compose):
        return [describe_augmentation(part) for part in augment.parts]
    augment = plain_function(augment)
    is_own = type(augment).__module__.startswith("flodl.")
    return describe(augment) if is_own else Contents().of(augment)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _columns(source: Columns) -> str:
    kinds = {"tensors" if isinstance(column, Tensor) else "arrays" for column in source.columns}
    shapes = [
        f"{str(column.dtype).removeprefix('torch.')} {'x'.join(map(str, column.shape))}"
        for column in source.columns
    ]
    names = source.structure.names or [""] * len(shapes)
    named = [f"{name} {shape}".strip() for name, shape in zip(names, shapes)]
    return f"{' and '.join(sorted(kinds))}: {', '.join(named)}"


def _content(columns: Sequence[Any]) -> str:
    """Return a hash of every column, or of parts of it, which tells datasets apart."""
    hashes = [content_hash(column, max_bytes=MAX_BYTES) for column in columns]
    return short_hash("".join(hashes).encode())


def _dataset(dataset: Any) -> str:
    """Describe a dataset or an iterable by its class and its plain settings, such as root and split."""
    if isinstance(dataset, DataLoader):
        order, workers = order_text(dataset), dataset.num_workers
        return f"DataLoader({_dataset(dataset.dataset)}, {order}, num_workers={workers})"
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
        if not is_reading(item)
    }
    shown = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    return f"{name}({shown})" if shown else name

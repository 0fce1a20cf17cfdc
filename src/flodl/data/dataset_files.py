"""The files that a dataset reads while it is used: those that its attributes name."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import PurePath
from typing import Any

from torch.utils.data import Dataset

from flodl.core.contents import file_text
from flodl.core.contents.objects import attributes_of, constants_of, states_of
from flodl.core.plain import hide_secret

MAX_FILES = 8
_MAX_ATTRIBUTES = 64
_MAX_DATASETS = 8
_MAX_PATH = 4096


def describe_files(dataset: Any) -> dict[str, str]:
    """Describe the files that are attributes of a dataset, or of a dataset inside it, by their contents.

    Only strings and paths that are attributes themselves are tried, and at most eight files are read, each
    in 64 places if it is large. What methods of the dataset assign is its state, and is left out.

    >>> from types import SimpleNamespace
    >>> describe_files(SimpleNamespace(path=__file__, split="no such file"))
    {'path': '... bytes #...'}
    """
    found: dict[str, str] = {}
    for name, path in islice(_paths(dataset, ""), _MAX_ATTRIBUTES):
        if len(found) < MAX_FILES and (text := file_text(path)) is not None:
            found[name] = text
    return found


def _paths(dataset: Any, prefix: str, depth: int = 3) -> Iterator[tuple[str, str | PurePath]]:
    states = states_of(dataset)
    stored = {**constants_of(type(dataset)), **attributes_of(dataset)}
    stored = {name: item for name, item in stored.items() if name not in states}
    for name, item in stored.items():
        path = hide_secret(name, item)
        if isinstance(path, PurePath) or (type(path) is str and 0 < len(path) <= _MAX_PATH):
            yield f"{prefix}{name}", path
    for name, item in stored.items() if depth else ():  # a Subset, a ConcatDataset, a wrapper
        is_list = type(item) in (list, tuple)
        for number, inner in enumerate(item[:_MAX_DATASETS] if is_list else (item,)):
            if isinstance(inner, Dataset):
                where = f"{prefix}{name}.{number}." if is_list else f"{prefix}{name}."
                yield from _paths(inner, where, depth - 1)

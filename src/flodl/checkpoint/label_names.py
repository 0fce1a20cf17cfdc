"""The names of the classes that a module predicts; its weights depend on their order.

A module that knows them adds them to the metadata of its `state_dict()`, from which they go into files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from flodl.core import CheckpointError

LABELS = "flodl_labels"
# The names of each module by its path.
Labels = Mapping[str, Sequence[str]]


class _AddLabels:
    """A hook of `state_dict()`, in a form that can be pickled."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)

    def __call__(self, module: nn.Module, state: Any, prefix: str, metadata: dict[str, Any]) -> None:
        metadata[LABELS] = self.names


def name_labels(module: nn.Module, names: Sequence[str]) -> None:
    """Add the names of a module's classes to its `state_dict()`; earlier names are replaced.

    >>> head = nn.Linear(4, 2)
    >>> name_labels(head, ["negative", "positive"])
    >>> labels_in(nn.Sequential(head).state_dict())
    {'0': ['negative', 'positive']}
    """
    hooks = module._state_dict_hooks
    for key in [key for key, hook in hooks.items() if isinstance(hook, _AddLabels)]:
        del hooks[key]
    hook: Any = _AddLabels(names)
    module.register_state_dict_post_hook(hook)  # type: ignore[no-untyped-call]


def labels_in(state: object) -> dict[str, list[str]]:
    """Return the names of classes that a `state_dict()` has, by the path of the module."""
    metadata = getattr(state, "_metadata", None)
    if not isinstance(metadata, Mapping):
        return {}
    found = {path: one.get(LABELS) for path, one in metadata.items() if isinstance(one, Mapping)}
    return {path: list(names) for path, names in found.items() if names is not None and _are_names(names)}


def labels_metadata(*states: object) -> dict[str, str]:
    """Return the names in these states as metadata of a file; empty without names."""
    found = {path: names for state in states for path, names in labels_in(state).items()}
    return {LABELS: json.dumps(found)} if found else {}


def stored_labels(source: object, metadata: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names in a file, or those of the bundle that it belongs to, for all of its tensors."""
    try:
        found = json.loads(metadata[LABELS]) if LABELS in metadata else _labels_of_run(source)
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(path): names for path, names in found.items() if _are_names(names)}


def _labels_of_run(source: object) -> Any:
    """Return the names that a trainer saved next to the weights, as bundles of earlier versions have them."""
    if not isinstance(source, str | os.PathLike):
        return {}
    record = Path(source).with_name("trainer.json")
    saved = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    return {"": saved.get("labels")} if isinstance(saved, dict) else {}


def check_labels(own: Labels, stored: Labels, sources: Mapping[str, str], where: str) -> None:
    """Raise if weights would be loaded into a module that has the same labels in another order.

    `sources` maps the names of tensors in the model to those in the file.
    """
    for path, names in own.items():
        for old_path, saved in stored.items():
            loaded = (_is_in(new, path) and _is_in(old, old_path) for new, old in sources.items())
            if are_reordered(names, saved) and any(loaded):
                raise CheckpointError(
                    f"{where} predicts the labels {[*saved]!r:.300}, and {path or 'this model'!r} has the "
                    f"same labels in another order, {[*names]!r:.300}: every prediction would get the name "
                    f"of another class. Nothing was loaded. Create the model with labels={[*saved]!r:.300}."
                )


def are_reordered(names: Sequence[str], saved: Sequence[str]) -> bool:
    """Return whether two lists have the same names in another order; case and outer spaces do not count.

    >>> are_reordered(["positive", "negative"], ["NEGATIVE", "POSITIVE"]), are_reordered(["a"], ["b"])
    (True, False)
    """
    own, other = ([name.strip().casefold() for name in each] for each in (names, saved))
    return own != other and sorted(own) == sorted(other)


def _is_in(name: str, path: str) -> bool:
    return not path or name.startswith(f"{path}.")


def _are_names(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(name, str) for name in value)

"""Which options of the program the keys of a manifest set, and in which maps the keys are option names."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from types import MappingProxyType

from .document import Leaf, Node, Table

# The option for each key, in the order in which they are passed to the program.
FLAGS: Mapping[str, Mapping[str, str]] = {
    "ddp": {
        "mode": "mode",
        "policy": "policy",
        "backend": "backend",
        "anchor": "anchor",
        "max_anchor": "max-anchor",
        "overhead_target": "overhead-target",
        "divergence_threshold": "divergence-threshold",
        "max_batch_diff": "max-batch-diff",
        "max_grad_norm": "max-grad-norm",
        "snapshot_timeout": "snapshot-timeout",
        "checkpoint_every": "checkpoint-every",
        "progressive": "progressive",
        "speed_hint": "speed-hint",
        "partition_ratios": "partition-ratios",
        "lr_scale_ratio": "lr-scale-ratio",
        "timeline": "timeline",
    },
    "training": {
        "epochs": "epochs",
        "batch_size": "batch-size",
        "batches_per_epoch": "batches",
        "lr": "lr",
        "seed": "seed",
    },
    "output": {"dir": "output", "monitor": "monitor"},
}


def option_name(key: str) -> str:
    """Return the option that a key names: `batch_size` and `batch-size` are the same."""
    return key.replace("_", "-")


def has_option_names(path: tuple[str, ...]) -> bool:
    """Return whether the keys of the map at a path are names of options.

    Further down, they may also be the keys of an option that takes a dict.

    >>> has_option_names(("commands", "quick", "options")), has_option_names(("commands", "options"))
    (True, False)
    """
    if path in (("training",), ("sweep", "over")):
        return True
    return len(path) == 3 and path[0] == "commands" and path[2] in ("training", "options")


def without_options_of(lower: Table, upper: Table) -> Table:
    """Return a command without the options that an upper layer sets in another section of the same command.

    `options: {batch_size: 8}` does not override `training: {batch_size: 64}` of an overlay.
    """
    entries: dict[str, Node] = {}
    for section, node in lower.entries.items():
        if not isinstance(node, Table) or section not in (*FLAGS, "options"):
            entries[section] = node
            continue
        others = {flag for other, flag in _flags_in(upper) if other != section}
        kept = _without(node, section, (), others)
        if kept.entries or not node.entries:
            entries[section] = kept
    return Table(MappingProxyType(entries), lower.origin)


def _without(table: Table, section: str, path: tuple[str, ...], flags: Container[str]) -> Table:
    entries: dict[str, Node] = {}
    for key, node in table.entries.items():
        if isinstance(node, Table):
            inner = _without(node, section, (*path, key), flags)
            if inner.entries or not node.entries:
                entries[key] = inner
        elif _flag(section, (*path, key)) not in flags:
            entries[key] = node
    return Table(MappingProxyType(entries), table.origin)


def _flags_in(command: Table) -> Iterator[tuple[str, str]]:
    """Yield each section with an option that it sets."""
    for section in (*FLAGS, "options"):
        yield from ((section, flag) for flag in _leaf_flags(command.table(section), section, ()))


def _leaf_flags(table: Table, section: str, path: tuple[str, ...]) -> Iterator[str]:
    for key, node in table.entries.items():
        if isinstance(node, Table):
            yield from _leaf_flags(node, section, (*path, key))
        elif isinstance(node, Leaf) and node.value is not None and (flag := _flag(section, (*path, key))):
            yield flag


def _flag(section: str, path: tuple[str, ...]) -> str:
    """Return the option that a value sets, or an empty string: `output.timeline` is not an option."""
    is_fixed = section in ("ddp", "output") or (section == "training" and len(path) == 1)
    return FLAGS[section].get(path[0], "") if is_fixed else option_name(".".join(path))

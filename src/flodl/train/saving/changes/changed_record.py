"""Differences between the record of this start and that of an earlier one, in words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from flodl.core.formats import counted
from flodl.data import settled_order

from ...record.changes import ABSENT, changed_modules, changes
from ...record.hooks import changed_hooks

MAX_LINES = 20
_CODE = re.compile(r" #[0-9a-f]{8}\b")
# Compared with what the run was saved with; other parts of the record are compared on their own.
_COMPARED = (
    *("step_fn", "step", "metrics", "outputs", "torch_hooks", "optimizer_attributes", "keep"),
    *("versions", "torch", "hardware"),
)
_CONTENT = ("source", "content", "dataset")
# `batch_size` and `shuffle` are those of a DataLoader.
_FORM = ("drop_last", "batches", "batch_size", "shuffle")
_FUNCTIONS = ("augment", "transform", "collate", "collate_fn", "worker_init_fn", "sampler")


def changed_record(
    now: Mapping[str, Any],
    before: Mapping[str, Any],
    *,
    reported: Collection[str] = (),
    loaded: Sequence[Any] | None = None,
) -> list[str]:
    """Describe what changed since the earlier record, one line each; those of this program apply.

    `reported` are the hooks already reported as missing or new, `loaded` all hooks after their saved states
    were loaded, which may have replaced settings of this program.
    A record of an older version of flodl, which contains less, is not compared.
    """
    if "step" not in before:
        return []
    now, before = comparable(now, before)
    lines = [
        line
        for name in _COMPARED
        if name in now and name in before
        for line in changes(name, _settled(name, now[name]), _settled(name, before[name]))
    ]
    model, saved = now.get("model") or {}, before.get("model") or {}
    lines += changed_modules(model, saved)
    lines += changes("model.classes", model.get("classes") or {}, saved.get("classes") or {})
    lines += changed_data(now, before)
    hooks, saved_hooks = now.get("hooks") or [], before.get("hooks") or []
    lines += changed_hooks(hooks, saved_hooks, reported, hooks if loaded is None else loaded)
    if len(lines) > MAX_LINES:
        more = len(lines) - MAX_LINES
        lines[MAX_LINES:] = [f"and {more} more differences, which config.json lists"]
    return lines


def nothing_left(epochs: int, changed: Sequence[str]) -> str:
    """Return the message of a finished run; `changed` lists its differences from this program.

    >>> nothing_left(2, [])
    'nothing is left to train: 2 epochs are done'
    """
    done = f"{counted(epochs, 'epoch')} {'is' if epochs == 1 else 'are'} done"
    if not changed:
        return f"nothing is left to train: {done}"
    return (
        f"nothing is left to train: {done}. The results come from the settings that the run was "
        f"trained with, not from those of this program: {'; '.join(changed)}"
    )


def comparable(
    now: Mapping[str, Any], before: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return two records, without the hashes of code if they come from different versions of Python."""
    if _python(now) == _python(before) or "versions" not in before:
        return now, before
    return _without_code(now), _without_code(before)


def _python(record: Mapping[str, Any]) -> str:
    return ".".join(str((record.get("versions") or {}).get("python")).split(".")[:2])


def _without_code(value: Any) -> Any:
    """Return a description without the hashes of code: each version of Python has its own bytecode."""
    if isinstance(value, Mapping):
        return {name: _without_code(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_code(item) for item in value]
    return _CODE.sub("", value) if isinstance(value, str) else value


def _settled(name: str, value: Any) -> Any:
    """Return a part of the record without the seed of the program: a run continues with its own."""
    return {key: one for key, one in value.items() if key != "initial_seed"} if name == "torch" else value


def changed_data(now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    """Describe training and evaluation data that changed, where both are known."""
    for name in ("data", "eval_data"):
        if name in now and name in before:
            yield from _changed_data(name, now[name], before[name])


def _changed_data(path: str, now: Any, before: Any) -> Iterator[str]:
    """Compare what is read; its size and order are checked with the position."""
    if not isinstance(now, Mapping) or not isinstance(before, Mapping):
        yield from changes(path, _source(now), _source(before))
        return
    now, before = settled_order(now), settled_order(before)
    # Only a loader knows the content of some data, and evaluation data may not have one yet.
    names = [name for name in _CONTENT if name in now]
    if "dataset" in names:
        names.remove("source")  # the same in one line
    names += [name for name in _FUNCTIONS if name in now or name in before]
    # The form of evaluation batches may be known only when they are made.
    names += [name for name in _FORM if name in now and name in before]
    for name in names:
        yield from changes(f"{path}.{name}", now.get(name, ABSENT), before.get(name, ABSENT))
    # An older version of flodl recorded no files, and one that was missing may be a cache.
    files, saved = now.get("files") or {}, before.get("files") or {}
    for name in files:
        if name in saved:
            yield from changes(f"{path}.files.{name}", files[name], saved[name])


def _source(data: Any) -> Any:
    return data.get("dataset") or data.get("source") if isinstance(data, Mapping) else data

"""Several runs next to each other: their summaries, and the settings in which they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flodl.core.metric_modes import Mode, main_metric

from ..journal import dumps

_SCALARS = (str, int, float, bool, type(None))
_MISSING = object()
_TOTAL_EPOCHS = "(total epochs)"


@dataclass(frozen=True)
class Focus:
    """What a comparison is about, if that is known: the metric of a sweep, and the settings it tries."""

    metric: str | None = None
    mode: Mode | None = None
    settings: tuple[str, ...] = ()

    @property
    def modes(self) -> dict[str, Mode]:
        """The mode of the metric, if it is set."""
        return {self.metric: self.mode} if self.metric and self.mode else {}


class _Setting(NamedTuple):
    """A setting of all runs: the JSON of its value for each, and whether someone has set it."""

    keys: tuple[bytes | None, ...]
    is_set: bool


def compare(summaries: Sequence[Mapping[str, Any]], focus: Focus | None = None) -> dict[str, Any]:
    """Return the runs with the settings in which they differ, and which of these a table should show.

    >>> runs = [{"config": [{"path": "lr", "value": lr}, {"path": "seed", "value": 0}]} for lr in (0.1, 0.2)]
    >>> compared = compare([{**run, "folder": "a", "facts": {}, "metrics": {}} for run in runs])
    >>> compared["differing"], [run["settings"] for run in compared["runs"]]
    (['lr'], [{'lr': 0.1}, {'lr': 0.2}])
    """
    focus = focus or Focus()
    values = [_values(summary) for summary in summaries]
    changed = [summary.get("changed", {}) for summary in summaries]
    ever_changed = {path for each in changed for path in each}
    _name_epochs(values)
    # The last start of every run may lack a setting that an earlier one had.
    paths = dict.fromkeys([*(path for each in values for path in each), *sorted(ever_changed)])
    set_paths = {
        str(item.get("path")) for summary in summaries for item in summary["config"] if item.get("origin")
    }
    settings = {
        path: _Setting(
            tuple(
                _key(each.get(path), history.get(path)) if path in each or path in history else None
                for each, history in zip(values, changed)
            ),
            path in set_paths,
        )
        for path in paths
        if path in ever_changed or not _is_same(path, values)
    }
    differing = [path for path in settings if len(set(settings[path].keys)) > 1]
    metrics = Counter(name for summary in summaries for name in summary["metrics"])
    shared = [name for name, count in metrics.items() if count == max(metrics.values())]
    return {
        "runs": [
            {
                **{name: value for name, value in summary.items() if name not in ("config", "facts")},
                "settings": {path: each[path] for path in differing if path in each},
                "changed": {path: history[path] for path in differing if path in history},
            }
            for summary, each, history in zip(summaries, values, changed)
        ],
        "differing": differing,
        "columns": _columns(differing, settings, [str(summary["folder"]) for summary in summaries], focus),
        "num_settings": len(paths),
        "metrics": list(metrics),
        "metric": focus.metric if focus.metric in metrics else main_metric(shared),
    }


def _values(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by path, and the facts in parentheses."""
    found = {str(item.get("path")): item.get("value") for item in summary["config"]}
    return found | {f"({name})": value for name, value in summary["facts"].items()}


def _name_epochs(values: Sequence[dict[str, Any]]) -> None:
    """Replace the fact that a journal has by the setting of a trainer, `epochs`, where the numbers differ.

    A run without a known number, such as a loop that ends on its own, differs in nothing that is known.

    >>> runs = [{"epochs": 4, "(total epochs)": 4}, {"(total epochs)": 4}, {}]
    >>> _name_epochs(runs)
    >>> runs
    [{'epochs': 4}, {'epochs': 4}, {}]
    """
    totals = [each.pop(_TOTAL_EPOCHS, None) for each in values]
    differ = len({total for total in totals if total is not None}) > 1
    is_setting = any("epochs" in each for each in values)
    for each, total in zip(values, totals):
        if total is not None and (differ or (is_setting and "epochs" not in each)):
            each["epochs"] = total


def _is_same(path: str, values: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all runs have the same text, number or null, as they do for most settings.

    This is faster than JSON. Lists and dicts need JSON: [1] and [True] are equal in Python.
    """
    first = values[0].get(path, _MISSING)
    kind = type(first)
    if kind not in _SCALARS:
        return False
    for each in values:
        value = each.get(path, _MISSING)
        if value is not first and (type(value) is not kind or value != first):
            return False
    return True


def _columns(
    differing: Iterable[str], settings: Mapping[str, _Setting], folders: Sequence[str], focus: Focus
) -> list[str]:
    """Return the settings that tell the runs apart, without those that only follow from others.

    If someone has set some of them, on the command line or in a file, then the rest (the number of
    parameters, the hash of the weights) mostly follows: it is left out unless it differs between runs that
    are equal in all other columns.
    """
    found: list[str] = []

    def joint() -> list[tuple[bytes | None, ...]]:
        return list(zip(*(settings[path].keys for path in found))) or [()] * len(folders)

    def order(path: str) -> tuple[int, int]:
        at = focus.settings.index(path) if path in focus.settings else len(focus.settings)
        return at, 0 if settings[path].is_set else 2 if path.startswith("(") else 1

    ordered = sorted((path for path in differing if not _names_run(settings[path].keys, folders)), key=order)
    has_set = any(settings[path].is_set for path in ordered)
    for path in ordered:
        keys, is_set = settings[path]
        follows = (has_set and not is_set and path not in focus.settings) or path.startswith("(")
        if follows and len(set(zip(joint(), keys))) == len(set(joint())):
            continue
        if all(settings[other].keys != keys for other in found):
            found.append(path)
    return found


def _names_run(keys: Sequence[bytes | None], folders: Sequence[str]) -> bool:
    """Return whether a setting is a text that contains the name of the folder of its run."""
    if len(set(keys)) < len(keys):
        return False
    return all(
        key is not None and key.startswith(b'"') and folder.encode(errors="replace") in key
        for key, folder in zip(keys, folders)
    )


def _key(value: Any, changes: Sequence[Mapping[str, Any]] | None) -> bytes:
    """Return a value as JSON, with those it replaced: the number 1 and the text "1" differ, 1 and 1.0 do not.

    A run with a setting that a later start changed is not the same as one that always had its last value.
    """
    history = [[change["epoch"], change.get("was")] for change in changes or ()]
    return dumps(_without_fractions({"was": history, "now": value} if history else value))


def _without_fractions(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _without_fractions(item) for name, item in value.items()}
    return [_without_fractions(item) for item in value] if isinstance(value, list) else value

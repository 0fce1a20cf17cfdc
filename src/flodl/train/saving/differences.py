"""What this program has otherwise than the run that it goes on with, in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from flodl.graph import Graph

from ..build import settings_of, without_addresses

if TYPE_CHECKING:
    from ..run import Run

Modes = Mapping[str, Sequence[str]]
NAMES_TOLD = 3
# What the training step chooses for itself, or what says nothing about the numbers.
_NOT_COMPARED = frozenset({"params", "param_names", "fused", "foreach", "capturable", "initial_lr"})
# Kind, what is said of a name that has it, and of one that has it not.
_MODES = (
    ("frozen", "frozen", "trainable"),
    ("evaluating", "in evaluation", "in training"),
    ("stilled", "kept in evaluation", "free to train"),
)


def differences(
    run: Run,
    parts: Mapping[str, Any],
    *,
    groups: Iterable[Mapping[str, Any]],
    modes: Modes,
    own_folder: bool,
) -> list[str]:
    """Name all that differs; `groups` and `modes` are what this program had before the run was loaded."""
    saved = parts["trainer"]
    at_start = saved.get("modes_at_start")
    return [
        *other_settings(run, parts.get("config") or {}),
        *other_optimizer(
            groups,
            run.optimizer.param_groups,
            at_start=saved.get("optimizer_at_start"),
            scheduled=run.schedule is not None,
        ),
        *other_model(run.model, saved.get("structural_hashes") or {}, parts["model"]),
        *(
            conflicting_modes(modes, saved["modes"], at_start=at_start)
            if own_folder
            else kept_modes(modes, saved["modes"])
        ),
        *(
            f"the saved state of the hook {kind} finds no hook here"
            for kind in run.hooks.without_place(parts["hooks"])
        ),
        *(
            f"of the hook {kind} there were {before} and are {now}: they take the saved states in order"
            for kind, before, now in run.hooks.other_numbers(parts["hooks"])
        ),
    ]


def other_settings(run: Run, saved: Mapping[str, Any]) -> Iterator[str]:
    """Name the settings that are not those of the saved run; this program's hold from here on."""
    for name, value in settings_of(run).items():
        before = saved.get(name)
        if isinstance(before, str):
            before = without_addresses(before)  # older bundles have them
        if name in saved and before != value:
            yield f"{name} is {value!r} now, it was {before!r}"


def other_optimizer(
    given: Iterable[Mapping[str, Any]],
    held: Iterable[Mapping[str, Any]],
    *,
    at_start: Iterable[Mapping[str, Any]] | None,
    scheduled: bool,
) -> list[str]:
    """Name the settings of the optimizer that this program gave in vain: those of the saved run hold.

    What it gives as the saved run gave it `at_start` is not in vain: since then hooks changed it.
    """
    not_compared = _NOT_COMPARED | ({"lr"} if scheduled else set())
    told = {
        f"the optimizer goes on with its {name} of {_short(after[name])}, not {_short(before[name])}"
        for before, after, start in zip(given, held, chain(at_start or (), repeat({})))
        for name in before.keys() - not_compared
        if name in after and not _same(before[name], after[name])
        if name not in start or not _same(before[name], start[name])
    }
    return sorted(told)


def other_model(model: nn.Module, hashes: Mapping[str, str], saved: Mapping[str, Any]) -> Iterator[str]:
    """Say where the model computes something else, or in other numbers, than the one that was saved."""
    for path, own in graph_hashes(model).items():
        if path in hashes and hashes[path] != own:
            graph = f"the graph {path!r}" if path else "the graph"
            yield f"{graph} is built otherwise than it was saved (structural hash {own}, was {hashes[path]})"
    kinds: dict[tuple[str, str], list[str]] = {}
    for name, value in model.state_dict().items():
        before = saved.get(name)
        if isinstance(value, Tensor) and isinstance(before, Tensor) and before.dtype != value.dtype:
            kinds.setdefault((_kind(value), _kind(before)), []).append(name)
    for (now, then), names in kinds.items():
        yield f"{_listed(names)} {_are(names)} {now} now, saved as {then}"


def conflicting_modes(own: Modes, saved: Modes, *, at_start: Modes | None) -> Iterator[str]:
    """Name what is restored as it was saved though this program says otherwise.

    What the program says as it did `at_start` of the saved run is no conflict: since then hooks changed it.
    """
    for kind, names, then, now in _other_modes(own, saved):
        changed = set(names) if at_start is None else set(at_start[kind]) ^ set(own[kind])
        meant = [name for name in names if name in changed]
        it, was = ("it", "it was") if len(meant) == 1 else ("them", "they were")
        if meant:
            yield f"{_listed(meant)} {_are(meant)} {then} as {was} saved; this program has {it} {now}"


def kept_modes(own: Modes, saved: Modes) -> Iterator[str]:
    """Name what stays as this program has it though it was saved otherwise."""
    for _, names, then, now in _other_modes(own, saved):
        it, was = ("it", "it was") if len(names) == 1 else ("them", "they were")
        yield f"{_listed(names)} {_are(names)} {now} as this program has {it}; {was} saved {then}"


def _other_modes(own: Modes, saved: Modes) -> Iterator[tuple[str, list[str], str, str]]:
    """Give kind, names, and what they were and are, for all that has another mode than was saved."""
    told: set[str] = set()
    # A model that is in evaluation as a whole is only not in training yet.
    is_whole = "" in own["evaluating"] or "" in saved["evaluating"]
    for kind, has, lacks in _MODES:
        if kind == "evaluating" and is_whole:
            continue
        for there, here, then, now in ((saved, own, has, lacks), (own, saved, lacks, has)):
            known = told.union(here[kind])
            names = [name for name in there[kind] if name not in known]
            # What is kept in evaluation is in evaluation, too, and told once.
            told.update(names if kind == "evaluating" else ())
            if names:
                yield kind, names, then, now


def graph_hashes(model: nn.Module, path: str = "") -> dict[str, str]:
    """Give the structural hashes of the graphs that a model is or has, by path."""
    if isinstance(model, Graph):
        return {path: model.structural_hash}
    inner = (graph_hashes(child, f"{path}.{name}".lstrip(".")) for name, child in model.named_children())
    return {where: found for hashes in inner for where, found in hashes.items()}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    if _is_number(one) and _is_number(other):
        # A rate that was on a device came back with the digits of a float32.
        return math.isclose(one, other, rel_tol=1e-6)
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return True
    return bool(one == other)


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_short, value))})"
    return f"{float(value):g}" if _is_number(value) else repr(value)


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _listed(names: Sequence[str]) -> str:
    """Give a few names, then a count.

    >>> _listed(["a", "b"]), _listed(["a", "b", "c", "d", "e"]), _listed([""])
    ('a and b', 'a, b, c and 2 more', 'the model')
    """
    shown = [name or "the model" for name in names[:NAMES_TOLD]]
    more = len(names) - len(shown)
    if more:
        shown.append(f"{more} more")
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))

"""Differences between this program and the saved run, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from flodl.checkpoint.files.structure import Structure, moved_text
from flodl.core.ignored_settings import Ignored
from flodl.graph import Graph, structure_of
from flodl.monitor.run_settings.machine import versions
from flodl.monitor.run_settings.model import describe_buffers

from ...callbacks.dispatch import Hooks
from ...callbacks.schedulers import groups_in_use
from ...callbacks.standard import MetricWatcher
from ...learning_rate import group_ratios
from ...record.hooks import loaded_hooks
from ...record.settings import config_of
from ...session import Session
from .changed_config import changed_config
from .changed_optimizer import changed_optimizer, changed_ratios
from .changed_record import changed_record, comparable
from .label_names import changed_label_names

Modes = Mapping[str, Sequence[str]]
MAX_NAMES = 3
# The mode, and the words for a name that has it and for one that does not.
_MODES = (
    ("frozen", "frozen", "trainable"),
    ("evaluating", "in evaluation", "in training"),
    ("stilled", "kept in evaluation", "free to train"),
)


def differences(
    session: Session,
    hooks: Hooks,
    parts: Mapping[str, Any],
    *,
    recorded: Mapping[str, Any] | None = None,
    groups: Iterable[Mapping[str, Any]],
    ratios: Sequence[float] = (),
    modes: Modes,
    own_folder: bool,
    began_with: Iterable[Mapping[str, Any]] | None,
    config: Mapping[str, Any] | None = None,
    saved_config: Mapping[str, Any] | None = None,
    ignored: Ignored | None = None,
    record: Mapping[str, Any] | None = None,
) -> list[str]:
    """Describe every difference; `groups`, `ratios` and `modes` are those of this program before loading.

    `recorded` is the record of the saved run, if it differs from that in `parts`.
    `began_with` are those with which the saved run began, or its last call of `fit`.
    `config` are the settings of the user, `saved_config` those that the saved run used, `ignored` those of
    the optimizer that have no effect, `record` the parts of the record that are known by now.
    """
    saved, recorded = parts["trainer"], (parts.get("config") or {}) if recorded is None else recorded
    at_start = saved.get("modes_at_start")
    unclaimed, counts = hooks.unclaimed(parts["hooks"]), hooks.changed_counts(parts["hooks"])
    return [
        *changed_settings(session, recorded),
        *changed_config(config or {}, saved_config or {}, ignored),
        *changed_record(
            record or {},
            recorded,
            reported={*unclaimed, *(kind for kind, *_ in counts)},
            loaded=loaded_hooks(hooks),
        ),
        *changed_optimizer(
            groups,
            groups_in_use(session.optimizer, hooks.all),
            at_start=began_with,
            scheduled=session.schedule is not None,
        ),
        *changed_ratios(ratios, group_ratios(session.train_step.schedule)),
        *changed_buffers(
            ((record or {}).get("model") or {}).get("buffers"),
            (recorded.get("model") or {}).get("buffers"),
            describe_buffers(session.model),
        ),
        *changed_model(session.model, saved, parts["model"]),
        *changed_label_names(saved.get("labels"), session.model),
        *(
            conflicting_modes(session.model, modes, saved["modes"], at_start=at_start)
            if own_folder
            else kept_modes(session.model, modes, saved["modes"])
        ),
        *(f"the hook {kind} was saved, but this program does not have it" for kind in unclaimed),
        *(
            f"the number of {kind} hooks is now {now}, was {before}: the states are assigned in order"
            for kind, before, now in counts
        ),
        *(
            f"the settings of several {kind} hooks changed: their states are assigned in order"
            for kind in hooks.guessed(parts["hooks"])
        ),
        *(hook.restart for hook in hooks.all if isinstance(hook, MetricWatcher) and hook.restart),
    ]


def changed_settings(session: Session, saved: Mapping[str, Any]) -> Iterator[str]:
    """Describe settings that changed since the run was saved; those of this program apply."""
    own, saved = comparable({**config_of(session), "versions": versions()}, saved)
    for name, value in own.items():
        if name == "versions":
            continue  # compared with the rest of the record
        before = saved.get(name)
        if isinstance(before, str) and before.startswith("<function "):
            continue  # older bundles contain no more than its name
        if name in saved and before != value:
            yield f"{name} is now {value!r}, was {before!r}"
    if "device" in saved and ("devices" in own) != ("devices" in saved):
        yield f"the run trains on {_devices(own)} now, before on {_devices(saved)}"


def _devices(config: Mapping[str, Any]) -> str:
    devices = config.get("devices")
    return f"{len(devices)} devices (policy {config['policy']!r})" if devices else "one device"


def changed_buffers(own: Any, at_start: Any, loaded: Mapping[str, Any]) -> Iterator[str]:
    """Describe buffers for which this program sets another value than at the first start, without effect.

    Training changes some buffers, such as running statistics. These are left out: a model that was trained
    before in the same process has other values, and nobody set them.
    """
    if not isinstance(own, Mapping) or not isinstance(at_start, Mapping):
        return
    found: dict[tuple[str, str], list[str]] = {}
    for path, value in own.items():
        before = at_start.get(path, value)
        if value != before and loaded.get(path) == before:
            found.setdefault((repr(value), repr(before)), []).append(path)
    for (value, before), paths in found.items():
        one = len(paths) == 1
        buffers, continues, its = ("buffer", "continues", "its") if one else ("buffers", "continue", "their")
        yield f"the {buffers} {_listed(paths)} {continues} with {its} saved value of {before}, not {value}"


def changed_model(model: nn.Module, trainer: Mapping[str, Any], saved: Mapping[str, Any]) -> Iterator[str]:
    """Describe graphs with a different structure and tensors with a different dtype."""
    yield from changed_structure(model, trainer)
    dtypes: dict[tuple[str, str], list[str]] = {}
    for name, value in model.state_dict().items():
        before = saved.get(name)
        if isinstance(value, Tensor) and isinstance(before, Tensor) and before.dtype != value.dtype:
            dtypes.setdefault((_dtype(value), _dtype(before)), []).append(name)
    for (now, then), names in dtypes.items():
        yield f"{_listed(names)} {_are(names)} now {now}, saved as {then}"


def changed_structure(model: nn.Module, saved: Mapping[str, Any]) -> Iterator[str]:
    """Describe graphs with a different structure, by the hashes in the part "trainer" of the saved run."""
    hashes, structures = saved.get("structural_hashes") or {}, saved.get("structures") or {}
    for path, own in graph_structures(model).items():
        # Older bundles have only the hashes.
        known = structures.get(path) or {"structural_hash": hashes[path]} if path in hashes else {}
        if own.is_same_as(known) is False:
            graph = f"the graph {path!r}" if path else "the graph"
            if moved := own.moved_names(known):
                yield f"{graph} has the same structure, but {moved_text(moved)}"
                continue
            yield f"{graph} is built differently (structural hash {own.hash}, was {hashes[path]})"


def conflicting_modes(model: nn.Module, own: Modes, saved: Modes, *, at_start: Modes | None) -> Iterator[str]:
    """Describe modes that are restored as saved although this program set others.

    A mode that is the same as `at_start` of the saved run is not a conflict: a hook changed it later.
    """
    for kind, names, then, now in _changed_modes(model, own, saved):
        changed = set(names)
        if at_start is not None:
            was_switched = kind == "evaluating" and _is_all_evaluating(model, at_start)
            changed = (set() if was_switched else set(at_start[kind])) ^ set(own[kind])
        conflicts = [name for name in names if name in changed]
        it, was = ("it", "it was") if len(conflicts) == 1 else ("them", "they were")
        if conflicts:
            names_are = f"{_listed(conflicts)} {_are(conflicts)}"
            yield f"{names_are} {then}, as {was} saved; this program has {it} {now}"


def kept_modes(model: nn.Module, own: Modes, saved: Modes) -> Iterator[str]:
    """Describe modes that stay as this program set them although others were saved."""
    for _, names, then, now in _changed_modes(model, own, saved):
        it, was = ("it", "it was") if len(names) == 1 else ("them", "they were")
        yield f"{_listed(names)} {_are(names)} {now}, as this program has {it}; {was} saved {then}"


def _changed_modes(model: nn.Module, own: Modes, saved: Modes) -> Iterator[tuple[str, list[str], str, str]]:
    """Yield kind, names, and the saved and current words for every mode that changed."""
    described: set[str] = set()
    # A model that is in evaluation mode as a whole has not started training yet.
    is_all = any(_is_all_evaluating(model, modes) for modes in (own, saved))
    for kind, has, lacks in _MODES:
        if kind == "evaluating" and is_all:
            continue
        for there, here, then, now in ((saved, own, has, lacks), (own, saved, lacks, has)):
            known = described.union(here[kind])
            names = [name for name in there[kind] if name not in known and (name or kind != "evaluating")]
            # A module that is kept in evaluation is also in evaluation: describe it once.
            described.update(names if kind == "evaluating" else ())
            if names:
                yield kind, names, then, now


def graph_structures(model: nn.Module, path: str = "") -> dict[str, Structure]:
    """Return the structural hashes of all graphs in a model, by path."""
    if isinstance(model, Graph):
        return {path: structure_of(model)}
    inner = (graph_structures(child, f"{path}.{name}".lstrip(".")) for name, child in model.named_children())
    return {where: found for hashes in inner for where, found in hashes.items()}


def _is_all_evaluating(model: nn.Module, modes: Modes) -> bool:
    """Return whether every module is in evaluation mode: training switches such a model as a whole."""
    return {name for name, _ in model.named_modules()}.issubset(modes["evaluating"])


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _listed(names: Sequence[str]) -> str:
    """Return a few names, then a count.

    >>> _listed(["a", "b"]), _listed(["a", "b", "c", "d", "e"]), _listed([""])
    ('a and b', 'a, b, c and 2 more', 'the model')
    """
    shown = [name or "the model" for name in names[:MAX_NAMES]]
    more = len(names) - len(shown)
    if more:
        shown.append(f"{more} more")
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))

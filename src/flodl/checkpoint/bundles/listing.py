"""List the bundles in a folder, find the newest undamaged one, and delete old ones."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from flodl.core import CheckpointError, DamagedError, WriteError, log
from flodl.core.best_values import best_position, improves
from flodl.core.metric_modes import Mode, mode_of_metric
from flodl.core.paths import suggestion

from ..durable_files import delete_folder, shared_lock
from ..files.keywords import suggest_keywords
from .bundle import folder_to_read, read_bundle, verify_bundle
from .manifest import Bundle, Latest, is_bundle, newest_folder, read_manifest, step_and_revision
from .measured import measured_alike, values_alike, without_other_values
from .retention import Policy, apply_policy, best, keep


@suggest_keywords
def list_bundles(root: str | os.PathLike[str]) -> list[Bundle]:
    """Return the bundles in a folder, sorted by step; file contents are not read.

    A folder that does not exist raises, and so does one that is a bundle itself or a run with a folder of
    bundles.
    """
    return _readable(folder_to_read(root))[0]


@suggest_keywords
def damaged_bundles(root: str | os.PathLike[str]) -> list[str]:
    """Return why bundles in a folder cannot be listed; file contents are not read."""
    return _readable(folder_to_read(root))[1]


def _readable(root: Path) -> tuple[list[Bundle], list[str]]:
    """Return the bundles by step, newest revisions only, and what is wrong with those that are left out."""
    found: dict[int, Bundle] = {}
    damaged: list[str] = []
    for folder in _newest_first(root):
        try:
            bundle = read_manifest(folder)
        except DamagedError as error:
            damaged.append(error.what)
            continue
        found.setdefault(bundle.step, bundle)
    return sorted(found.values(), key=lambda bundle: bundle.step), damaged


@suggest_keywords
def latest_bundle(root: str | os.PathLike[str], *, verify: bool = True, missing_ok: bool = False) -> Latest:
    """Return the newest undamaged bundle, and log and list the damaged ones that were skipped.

    A folder that does not exist raises, unless `missing_ok`, for the first start of a run.
    """
    skipped: list[str] = []
    if missing_ok and not folder_to_read(root).exists():
        return Latest(None, skipped)
    for folder in _newest_first(folder_to_read(root)):
        try:
            bundle = read_manifest(folder)
            if verify:
                verify_bundle(bundle)
        except DamagedError as error:
            log.warn("skipping a bundle: %s", error)
            skipped.append(error.what)
            continue
        return Latest(bundle, skipped)
    return Latest(None, skipped)


@suggest_keywords
def best_bundle(root: str | os.PathLike[str], metric: str, *, mode: Mode | None = None) -> Bundle:
    """Return the bundle with the best value of a metric, by default as its name or a flodl metric implies.

    `root` is the folder of a run, or the folder with its bundles. `read_bundle(bundle)["model"]` has the
    weights. If the run was resumed with other evaluation data, only values on the newest data count.
    """
    return choose_best(root, metric, mode=mode)


def choose_best(
    root: str | os.PathLike[str], metric: str, *, mode: Mode | None, reports_better: bool = True
) -> Bundle:
    """Return the best bundle; with `reports_better`, warn if a better epoch was not kept."""
    folder = folder_to_read(root)
    bundles, damaged = _readable(folder / "bundles" if (folder / "bundles").is_dir() else folder)
    if not bundles and damaged:
        raise CheckpointError(f"{str(root)!r} has no bundle that can be read: {'; '.join(damaged)}")
    if not bundles:
        raise CheckpointError(f"{str(root)!r} has no bundles. Pass the folder of a run.")
    for reason in damaged:
        log.warn("skipping a bundle, which may be the best one: %s", reason)
    alike = measured_alike(bundles, metric)
    mode = _recorded_mode(bundles[-1], metric) if mode is None else mode
    chosen = best(metric, mode=mode).choose(alike)
    if not chosen:
        known = sorted({name for bundle in bundles for name in bundle.metrics})
        hint = suggestion(metric, known, known_as="metrics")
        raise CheckpointError(f"none of {len(bundles)} bundles has a value of {metric!r}. {hint}")
    # The history does not record which data a value was measured on.
    if reports_better and not damaged and len(alike) == len(bundles):
        _report_better(bundles[-1], chosen[0], metric, mode_of_metric(metric) if mode is None else mode)
    return chosen[0]


def _recorded_mode(newest: Bundle, metric: str) -> Mode | None:
    """Return the direction of a metric that a trainer has recorded, because the metric object declares it."""
    if "trainer" not in newest.parts:
        return None
    try:
        recorded = read_bundle(newest, parts=["trainer"], verify=False)["trainer"]
    except CheckpointError:
        return None
    modes = recorded.get("metric_modes") if isinstance(recorded, Mapping) else None
    mode = modes.get(metric) if isinstance(modes, Mapping) else None
    return mode if mode in ("min", "max") else None


def _report_better(newest: Bundle, chosen: Bundle, metric: str, mode: Mode) -> None:
    """Warn if the history of a run has a better epoch, whose bundle was not kept."""
    if "history" not in newest.parts:
        return  # not saved by a trainer
    try:
        parts = read_bundle(
            newest,
            parts=[one for one in ("history", "config", "trainer") if one in newest.parts],
            verify=False,
        )
    except CheckpointError:
        return
    settings, trainer = parts.get("config") or {}, parts.get("trainer") or {}
    history = values_alike(parts["history"], metric, trainer.get("evaluated_since", 0))
    known = [(row[metric], row["epoch"]) for row in history if metric in row]
    position = best_position((value for value, _ in known), mode)
    best_value, epoch = (math.nan, 0) if position is None else known[position]
    if improves(best_value, chosen.metrics[metric], mode):
        log.warn(
            "the best %s of the run was %g, in epoch %d, whose bundle was not kept. Of those that are left, "
            "%s is the best, with %g. %s",
            *(metric, best_value, epoch, chosen.path.name, chosen.metrics[metric]),
            how_to_keep_best(
                metric, keep=str(settings.get("keep")), save_every=settings.get("save_every", 1)
            ),
        )


def how_to_keep_best(metric: str, *, keep: str, save_every: int | None) -> str:
    """Return how to make a run keep its best epoch, after it did not.

    >>> how_to_keep_best("eval_loss", keep="best('eval_loss', 1, mode='min')", save_every=2)
    'Only epochs that are saved can be kept, and this run had save_every=2. save_every=1, the default, ...'
    >>> how_to_keep_best("eval_loss", keep="last(2)", save_every=1)
    "Trainer(keep=last(1) | best('eval_loss')) keeps the best one."
    """
    if save_every == 1:
        return f"Trainer(keep=last(1) | best({metric!r})) keeps the best one."
    also = "" if f"best({metric!r}" in keep else f", with keep=last(1) | best({metric!r})"
    return (
        f"Only epochs that are saved can be kept, and this run had save_every={save_every}. save_every=1, "
        f"the default, saves each{also}."
    )


@suggest_keywords
def prune_bundles(root: str | os.PathLike[str], policy: Policy, *, verify: bool = True) -> list[Bundle]:
    """Delete the bundles that a policy does not keep, and return them; the newest undamaged one is kept.

    With `verify`, the checksums of the newest bundle are compared before older ones are deleted. A policy
    with a metric that no bundle has raises an error, and nothing is deleted.
    """
    if not isinstance(policy, Policy):
        raise CheckpointError(f"the policy is {policy!r}. Pass one such as last(3) | best('loss').")
    folder = folder_to_read(root)
    bundles = list_bundles(folder)
    while verify and bundles:
        try:
            verify_bundle(bundles[-1])
            break
        except DamagedError:
            bundles.pop()
    return _delete(folder, *keep(bundles, policy))


def prune_while_saving(root: Path, policy: Policy) -> list[Bundle]:
    """Prune during a run, whose first saves may not have the policy's metrics yet.

    If the run was resumed with other evaluation data, the best saves on both are kept.
    """
    bundles = list_bundles(root)
    kept, dropped = apply_policy(bundles, policy)
    if dropped and policy.metrics:
        also, _ = apply_policy(without_other_values(bundles, policy.metrics), policy)
        paths = {each.path for each in (*kept, *also)}
        kept = [each for each in bundles if each.path in paths]
        dropped = [each for each in bundles if each.path not in paths]
    return _delete(root, kept, dropped)


def _delete(folder: Path, kept: list[Bundle], dropped: list[Bundle]) -> list[Bundle]:
    outdated = _folders_to_delete(folder, kept, dropped)
    if not outdated:
        return []
    try:
        with shared_lock(folder):
            for old in outdated:
                delete_folder(old)
    except OSError as error:
        raise WriteError(
            f"cannot delete old bundles in {str(folder)!r}: {error.strerror or error}. They are undamaged."
        ) from error
    return dropped


def _folders_to_delete(root: Path, kept: list[Bundle], dropped: list[Bundle]) -> list[Path]:
    """Return the folders of dropped steps, and older revisions of kept steps that a crash left behind."""
    dropped_steps = {bundle.step for bundle in dropped}
    kept_revisions = {bundle.step: step_and_revision(bundle.path.name) for bundle in kept}
    folders = []
    for folder in _newest_first(root):
        save = step_and_revision(folder.name)
        current = kept_revisions.get(save[0]) if save else None
        if save and (save[0] in dropped_steps or (current and save < current)):
            folders.append(folder)
    return folders


def _newest_first(root: Path) -> Iterator[Path]:
    try:
        names = os.listdir(root)
    except OSError as error:
        advice = "Pass the folder that bundles are saved in"
        if isinstance(error, FileNotFoundError):
            advice += ", or latest_bundle(…, missing_ok=True) if it may not exist yet"
        raise CheckpointError(f"cannot list {str(root)!r}: {error.strerror}. {advice}.") from error
    saves = {name: save for name in names if (save := step_and_revision(name)) is not None}
    if not saves:
        _check_nearby(root)
    for name in sorted(saves, key=saves.__getitem__, reverse=True):
        yield root / name


def _check_nearby(root: Path) -> None:
    """Raise if a folder without bundles is a bundle itself, or has a folder `bundles`, as a run has."""
    if is_bundle(root) and step_and_revision(root.name) is not None:
        raise CheckpointError(
            f"{str(root)!r} is a bundle, not a folder of bundles. Read it with read_bundle, or pass "
            f"{str(root.parent)!r}."
        )
    if newest_folder(root / "bundles") is not None:
        raise CheckpointError(
            f"the bundles of {str(root)!r} are in {str(root / 'bundles')!r}. Pass that folder."
        )

"""Resume a run: choose the bundle, and restore it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from flodl.checkpoint import Bundle, is_bundle, latest_bundle, read_bundle
from flodl.core import TrainError
from flodl.core.formats import counted
from flodl.data import Loader

from .callbacks.standard import EarlyStopping
from .evaluation.modes import modes_of
from .learning_rate import group_ratios, optimizer_settings
from .limit import check_same_limit
from .progress import Stage
from .ranks.coverage import check_ranges
from .run import Run
from .saving.bundle import load_parts
from .saving.changed_record import changed_data
from .saving.check import check_saved_run
from .saving.damaged import all_damaged, describe_ignored, move_damaged, open_intact
from .saving.differences import differences
from .saving.directory import BUNDLES, RunDirectory, absolute_path
from .saving.identity import check_seed
from .saving.missing_run import similar_folders, why_no_run
from .saving.undo import all_or_nothing
from .session import Session

_DATA = ("data", "eval_data")


def resume_run(
    run: Run,
    loader: Loader,
    how: str | PathLike[str] | bool,
    *,
    allow_different_structure: bool,
    max_epochs: int | None = None,
) -> bool:
    """Restore a bundle, and return whether there was one; a run with updates simply continues.

    A run with more than `max_epochs` epochs is rejected, before anything of it is loaded.
    Modes (frozen, in evaluation) are restored from the run's own folder, where its hooks may have changed
    them. A run that starts from another folder keeps the modes that the program set.
    """
    source = parse_resume(how)
    session, directory, calls = run.session, run.directory, run.session.fit_calls
    if calls.loads_again and calls.has_returned(max_epochs):
        run.progress.has_returned = True
        return False
    _check_epochs(session.epochs, max_epochs)
    _check_inside(session, max_epochs)
    if session.updates and not calls.loads_again:
        now, before = run.recorder.observe_data(loader, run.progress.eval_data)
        if not run.is_complete:  # else it is reported that the data was not used
            # A run that is evaluated from now on needs no warning.
            known = {name: one for name, one in before.items() if one is not None}
            run.report_changed(changed_data(now, known))
        return False
    bundle = find_bundle(directory, source, given=how)
    if bundle is None:
        run.recorder.observe_data(loader, run.progress.eval_data)
        run.when_begun(lambda: _warn(run, move_damaged(directory, newer_than=None)))
        _warn(run, describe_ignored(directory))
        return False

    def start() -> None:
        run.start()
        session.start.optimizer = optimizer_settings(session.optimizer)
        session.start.modes = modes_of(session.model)

    # Before anything is loaded: a load changes what modules, hooks and schedules contain.
    ratios = group_ratios(session.train_step.schedule)
    run.recorder.observe_data(loader, run.progress.eval_data)
    record = run.recorder.compared(session)
    # Its checksums were verified when it was found.
    parts = read_bundle(bundle, verify=False)
    own_folder = directory is not None and bundle.path.parent == directory.bundles
    check_saved_run(session, parts, allow_different_structure=allow_different_structure)
    saved, own_seed, was_loaded = parts["trainer"], loader.seed, calls.loads_again
    made = list(saved.get("fit_calls", ())) if own_folder else []
    has_returned = not was_loaded and made[:1] == [max_epochs]
    if not has_returned:
        _check_epochs(len(parts["history"]), max_epochs, source=None if own_folder else bundle.path)
        if (
            own_folder
            and session.settings.seed is None
            and len(parts["history"]) == run.progress.total_epochs
        ):
            assert directory is not None
            check_seed(directory.path, parts, seed=own_seed)
        if run.stage is not Stage.CLOSED:
            check_same_limit(saved.get("limit"), run.progress.limit)
    check_ranges(parts, on_ranks=bool(session.settings.devices))
    with all_or_nothing(session, run.cursor, loader, run.hooks):
        load_parts(
            session,
            parts,
            loaders=run.loaders,
            loader=None if has_returned else loader,
            hooks=run.hooks,
            start=start,
            with_modes=own_folder,
        )
        if not has_returned:
            _check_inside(session, max_epochs)
        session.start.is_fresh = False
        groups, modes = session.start.optimizer, session.start.modes
        assert groups is not None
        assert modes is not None
        session.updates_seen = session.updates
        found = differences(
            session,
            run.hooks,
            parts,
            groups=groups,
            ratios=ratios,
            modes=modes,
            own_folder=own_folder,
            config=run.recorder.config,
            record={name: one for name, one in record.items() if not (has_returned and name in _DATA)},
        )
        run.recorder.settle_hooks(parts.get("config") or {})
        # The next start is compared with the first one, too.
        session.start.optimizer = saved.get("optimizer_at_start") or groups
        if own_folder:
            session.start.modes = saved.get("modes_at_start") or modes
    if own_folder:
        session.start.earlier_record = parts.get("config") or {}
        assert run.saver is not None
        run.saver.mark_saved()
        own = run.saver.directory
        found = [*own.identity.compare(own.read_config(), parts["trainer"]), *found]
        run.when_begun(lambda: _warn(run, move_damaged(directory, newer_than=bundle)))
    else:
        session.start.source = str(bundle.path)
        session.start.buffers = ((parts.get("config") or {}).get("model") or {}).get("buffers")
    found = [line for line in found if line not in calls.reported]
    calls.loads_again = run.progress.has_returned = has_returned
    if has_returned:
        calls.returned = made
        calls.reported.update(found)
    restarts = not own_folder and any(isinstance(hook, EarlyStopping) for hook in run.hooks.all)
    notes = ["EarlyStopping starts counting from scratch"] if restarts else []
    if own_folder and isinstance(source, Path) and not bundle.path.is_relative_to(source):
        notes.append(f"its own folder takes precedence over {str(source)!r}")
    best, session.start.restored_step = session.start.restored_step, None
    if own_folder and best is not None and best != bundle.step and not was_loaded:
        notes.append(
            f"restore_best had loaded the weights of step {best}, which this replaces; to train from those, "
            "pass the bundle that restore_best returns as resume=… with another checkpoint_dir"
        )
    if run.is_complete and not has_returned:
        if loader.seed != own_seed:
            found.append(f"the seed is now {own_seed}, was {loader.seed}")
        run.progress.differences, found = found, []  # said where the run ends
    where = f"resumed after {counted(bundle.step, 'update')}, {session.epochs_in_words}"
    if not bundle.step:
        where = "starts with a save from before the first update"
    if has_returned:
        where = f"{where}; this call, fit(epochs={max_epochs}), was completed before, so it trains nothing"
    message = "; ".join([where, *notes, *found])
    if found:
        run.reports.warn(message)
    elif notes:
        run.reports.note(message)
    else:
        run.reports.event("alert", message=message, level="info")
    if not was_loaded:
        _call_on_resume(run, own_folder=own_folder)
    return True


def _call_on_resume(run: Run, *, own_folder: bool) -> None:
    """Call `on_resume`, and report if a hook stops the run there."""
    session = run.session
    was_stopped = bool(session.stop_reason)
    run.hooks.call("on_resume", epoch=session.epochs, own_folder=own_folder)
    if session.stop_reason and not was_stopped and not run.is_complete and not run.progress.has_returned:
        run.reports.note(_already_stopped(run))


def _already_stopped(run: Run) -> str:
    """Return why a run that is started again trains nothing, and what to change to train on."""
    session = run.session
    hooks = [hook for hook in run.hooks.all if isinstance(hook, EarlyStopping)]
    changes = list(filter(None, (hook.already_stopped for hook in hooks)))
    who, done = "EarlyStopping" if changes else "a hook", counted(session.epochs, "epoch")
    told = f"{who} stopped this run after {done}: {session.stop_reason}. It stays stopped, so nothing is "
    told += "trained."
    return f"{told} To train on, {' and '.join(changes)}." if changes else told


def _check_epochs(done: int, max_epochs: int | None, source: Path | None = None) -> None:
    """Raise if more epochs are done than asked for, in this run or in that at `source`."""
    if max_epochs is not None and done > max_epochs:
        if source is not None:
            raise TrainError(
                f"epochs={max_epochs}, but the run that is resumed, {str(source)!r}, has already completed "
                f"{done}, which count: epochs={done + 1} trains one more. To load only its "
                f"weights, write load_checkpoint({str(source / 'model.fdl')!r}, model.state_dict()) instead "
                "of resume=…."
            )
        raise TrainError(
            f"epochs={max_epochs}, but this run has already completed {done}. Use at least that many, or "
            "start from scratch with a different checkpoint_dir."
        )


def _check_inside(session: Session, max_epochs: int | None) -> None:
    """Raise if all epochs that are asked for are done, and the run is in the middle of the next one."""
    if session.epochs == max_epochs and session.is_inside_epoch:
        after = counted(session.updates, "update")
        raise TrainError(
            f"epochs={max_epochs}, but this run is in the middle of epoch {max_epochs + 1}, after {after}. "
            f"Use epochs={max_epochs + 1} or more to finish that epoch, or start from scratch with a "
            "different checkpoint_dir. The weights of the earlier epochs are in the bundles of the run."
        )


def _warn(run: Run, warning: str) -> None:
    if warning:
        run.reports.warn(warning)


def find_bundle(directory: RunDirectory | None, source: str | Path, *, given: Any) -> Bundle | None:
    """Return the bundle to resume from: that of this run if there is one, else the one the user names.

    `given` is what the user wrote for `source`.
    """
    named = source if isinstance(source, Path) else None
    other = None if named is None else _bundle_in(named)
    if directory is None:
        if source == "must":
            raise TrainError(f"resume={given!r} needs a checkpoint_dir.")
        return other
    own, damage = directory.find()
    if own is None and damage and source != "never":
        raise all_damaged(directory.bundles, damage, is_own=True)
    folder = repr(str(directory.bundles))
    if own is None and source == "must":
        raise TrainError(
            f"resume={given!r} needs a saved run, but checkpoint_dir {str(directory.path)!r} "
            f"{why_no_run(directory.path)} resume='auto' starts a new run where there is none."
        )
    if own is not None and source == "never":
        raise TrainError(
            f"resume={given!r}, and {folder} contains a run up to step {own.step}. "
            "Choose a different checkpoint_dir, or resume='auto' to continue it."
        )
    if named is not None and other is not None and own is not None:
        _check_not_older(directory, named, other, own)
    return own or other


def parse_resume(resume: Any) -> str | Path:
    """Return "auto", "must", "never", or the path of an existing folder."""
    if isinstance(resume, bool):
        return "must" if resume else "never"
    if resume in ("auto", "must", "never"):
        return str(resume)
    if not resume or not isinstance(resume, str | PathLike):
        raise _invalid(resume)
    folder = absolute_path(resume, option="resume")
    if not folder.is_dir():
        raise _invalid(resume, similar_folders(folder))
    return folder


def _bundle_in(folder: Path) -> Bundle:
    """Return the bundle at a path, or the newest intact one in it."""
    if is_bundle(folder):
        return open_intact(folder)
    inside = folder / BUNDLES if (folder / BUNDLES).is_dir() else folder
    found, damage = latest_bundle(inside)
    if found is None:
        raise all_damaged(inside, damage, is_own=False) if damage else _invalid(str(folder))
    return found


def _check_not_older(directory: RunDirectory, named: Path, other: Bundle, own: Bundle) -> None:
    """Raise if the user names a bundle of this run that is not its newest."""
    is_ours = other.path == named and named.parent.resolve() == directory.bundles.resolve()
    if is_ours and other.step < own.step:
        raise TrainError(
            f"{str(named)!r} is at step {other.step}, and the run in the same folder is at step "
            f"{own.step}: the next start could not tell which of the two to resume. Choose a different "
            "checkpoint_dir to resume from there, or move the newer bundles away."
        )


def _invalid(resume: Any, hint: str = "") -> TrainError:
    advice = hint or "Pass the checkpoint_dir of another run, or one of its bundles."
    return TrainError(
        f"resume={resume!r} is not 'auto', 'must', 'never' or a folder with an intact bundle. {advice}"
    )

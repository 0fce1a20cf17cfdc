"""Resume a run: choose the bundle, and restore it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from flodl.checkpoint import Bundle, read_bundle
from flodl.core import TrainError
from flodl.core.formats import counted
from flodl.data import Loader

from .callbacks.other_evaluation import begin_again, compared_anyway
from .callbacks.schedulers import groups_in_use
from .callbacks.standard import EarlyStopping
from .epoch import other_length
from .evaluation.modes import modes_of
from .learning_rate import optimizer_settings
from .limit import check_same_limit
from .progress import Stage
from .ranks.coverage import check_ranges
from .record.hooks import loaded_hooks, with_created
from .run import Run
from .saving.bundle import load_parts
from .saving.changes.changed_config import used_config
from .saving.changes.changed_record import changed_data
from .saving.changes.differences import differences
from .saving.changes.ignored import Rates, all_ignored, ignored_elsewhere, ignored_in_optimizer
from .saving.check import check_saved_run
from .saving.missing_state.skipped_hooks import skipped_hooks
from .saving.run_folder.damaged import describe_ignored, move_damaged
from .saving.run_folder.identity import check_seed
from .saving.run_folder.resume_source import find_bundle, parse_resume
from .saving.undo import all_or_nothing
from .session import Session

_DATA = ("data", "eval_data")


@dataclass(frozen=True)
class _Saved:
    """A saved run that is to be loaded."""

    bundle: Bundle
    parts: dict[str, Any]
    # Whether it is in the folder of this run.
    is_own: bool
    # Whether the program that saved it had completed this call of `fit`, so that there is nothing to train.
    has_returned: bool
    # Whether such a call has loaded it before, in this process.
    was_loaded: bool


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
            lines = [*changed_data(now, known), *_forget_other_evaluation(run, now, known)]
            # Training in stages calls fit several times, each time with different data.
            is_stage = all(line.startswith("data.") for line in lines)
            if is_stage and lines and (length := other_length(run, loader)):
                lines.append(f"it {length}")
            run.report_changed(lines, as_note=is_stage)
        return False
    bundle = find_bundle(directory, source, given=how)
    if bundle is None:
        run.recorder.observe_data(loader, run.progress.eval_data)
        run.when_begun(lambda: _warn(run, move_damaged(directory, newer_than=None)))
        _warn(run, describe_ignored(directory))
        return False
    # Its checksums were verified when it was found.
    parts = read_bundle(bundle, verify=False)
    check_saved_run(session, parts, allow_different_structure=allow_different_structure)
    is_own = directory is not None and bundle.path.parent == directory.bundles
    made = list(parts["trainer"].get("fit_calls", ())) if is_own else []
    has_returned = not calls.loads_again and [call["epochs"] for call in made[:1]] == [max_epochs]
    saved = _Saved(bundle, parts, is_own, has_returned, was_loaded=calls.loads_again)
    own_seed = loader.seed
    if not has_returned:
        _check_goal(run, saved, loader, max_epochs)
    check_ranges(parts, on_ranks=bool(session.settings.devices))
    found = [line for line in _load(run, saved, loader, max_epochs) if line not in calls.reported]
    calls.loads_again = run.progress.has_returned = has_returned
    if has_returned:
        calls.returned = made
        calls.reported.update(found)
    if run.is_complete and not has_returned:
        if loader.seed != own_seed:
            found.append(f"the seed is now {own_seed}, was {loader.seed}")
        run.progress.differences, found = found, []  # said where the run ends
    _report(run, saved, found, source=source)
    if not saved.was_loaded:
        is_within_epoch = session.is_inside_epoch and not run.is_complete
        if is_within_epoch and (note := skipped_hooks(run.hooks.all, session.epochs)):
            run.reports.note(note)
        if is_own and not run.is_complete:
            for warning in run.hooks.unsaved_values.lost(parts["trainer"].get("unsaved_in_hooks", ())):
                run.reports.warn(warning)
        _call_on_resume(run, own_folder=is_own)
    return True


def _check_goal(run: Run, saved: _Saved, loader: Loader, max_epochs: int | None) -> None:
    """Raise if the saved run has more epochs than are asked for, or other limits."""
    session, done = run.session, len(saved.parts["history"])
    _check_epochs(done, max_epochs, source=None if saved.is_own else saved.bundle.path)
    if saved.is_own and done == run.progress.total_epochs:
        assert run.directory is not None
        if session.settings.seed is None:
            check_seed(run.directory.path, saved.parts, seed=loader.seed)
        elif not loader.depends_on_seed:  # else the position in the data is rejected
            check_seed(run.directory.path, saved.parts, seed=session.settings.seed, part="config")
    if run.stage is not Stage.CLOSED:
        check_same_limit(saved.parts["trainer"].get("limit"), run.progress.limit)


def _load(run: Run, saved: _Saved, loader: Loader, max_epochs: int | None) -> list[str]:
    """Load a saved run, all or nothing, and describe its differences from this program."""
    session, parts, is_own = run.session, saved.parts, saved.is_own
    # Before anything is loaded: a load changes what modules, hooks and schedules contain.
    rates, own_seed = Rates.of(session), loader.seed
    run.recorder.observe_data(loader, run.progress.eval_data)
    record = run.recorder.compared(session)
    if saved.has_returned:
        record = {name: one for name, one in record.items() if name not in _DATA}

    call = parts["trainer"].get("optimizer_at_call") if saved.was_loaded else None
    began_with = parts["trainer"].get("optimizer_at_start") if call is None else call

    def start() -> None:
        run.start()
        session.start.optimizer = optimizer_settings(session.optimizer)
        session.start.modes = modes_of(session.model)

    with all_or_nothing(session, run.cursor, loader, run.hooks):
        load_parts(
            session,
            parts,
            loaders=run.loaders,
            loader=None if saved.has_returned else loader,
            hooks=run.hooks,
            start=start,
            with_modes=is_own,
        )
        if not saved.has_returned:
            _check_inside(session, max_epochs)
        session.start.is_fresh = False
        groups, modes = session.start.optimizer, session.start.modes
        assert groups is not None
        assert modes is not None
        session.updates_seen = session.updates
        recorded = parts.get("config") or {}
        in_use = groups_in_use(session.optimizer, run.hooks.all)
        in_optimizer = ignored_in_optimizer(session, groups, rates, in_use=in_use, began_with=began_with)
        # These include schedulers that `on_start` has created.
        hooks, record["hooks"] = loaded_hooks(run.hooks), run.recorder.hook_settings()
        if recorded.get("hooks"):
            names = run.hooks.created_settings
            recorded = {**recorded, "hooks": with_created(recorded["hooks"], record["hooks"], hooks, names)}
        elsewhere = ignored_elsewhere(
            record["hooks"], hooks, seeds=(own_seed, loader.seed), recorded=recorded
        )
        ignored = all_ignored(in_optimizer, elsewhere, record={**record, "hooks": hooks}, recorded=recorded)
        # Older bundles have only the settings that the last program asked for.
        saved_config = parts["trainer"].get("used_config") or recorded.get("config") or {}
        forgotten = []
        if is_own and not run.is_complete:
            forgotten = _forget_other_evaluation(run, record, recorded)
        found = differences(
            session,
            run.hooks,
            parts,
            recorded=recorded,
            groups=groups,
            ratios=rates.ratios,
            modes=modes,
            own_folder=is_own,
            began_with=began_with,
            config=run.recorder.config,
            saved_config=saved_config,
            ignored=ignored,
            record=record,
        )
        found += [line for line in forgotten if line not in found]
        run.recorder.settle_hooks(recorded)
        session.start.used_config = used_config(run.recorder.config, saved_config, ignored)
        session.start.ignored |= in_optimizer.own
        session.start.ignored_elsewhere |= elsewhere.own
        # The next start is compared with the first one, too.
        session.start.optimizer = parts["trainer"].get("optimizer_at_start") or groups
        if is_own:
            session.start.modes = parts["trainer"].get("modes_at_start") or modes
    if not is_own:
        session.start.epochs_elsewhere = session.epochs
        session.start.source = str(saved.bundle.path)
        session.start.buffers = (recorded.get("model") or {}).get("buffers")
        return found
    session.start.epochs_elsewhere = parts["trainer"].get("epochs_elsewhere", 0)
    session.start.restored_epochs = range(session.start.epochs_elsewhere, session.epochs)
    session.start.earlier_record = recorded
    if call is not None:
        session.fit_calls.at_begin = call
    assert run.saver is not None
    run.saver.mark_saved()
    directory = run.saver.directory
    run.when_begun(lambda: _warn(run, move_damaged(directory, newer_than=saved.bundle)))
    return [*directory.identity.compare(directory.read_config(), parts["trainer"]), *found]


def _forget_other_evaluation(run: Run, now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """If the evaluation data changed, forget best values; describe what did, and what still compares them."""
    own, known = ({"eval_data": each.get("eval_data")} for each in (now, before))
    if None in (own["eval_data"], known["eval_data"]) or not any(changed_data(own, known)):
        return []
    run.session.start.evaluated_since = run.session.epochs
    keep = compared_anyway(run.directory.keep, run.session.history) if run.directory is not None else []
    return [*begin_again(run.hooks.all), *keep]


def _report(run: Run, saved: _Saved, found: list[str], *, source: str | Path) -> None:
    """Report what was loaded, and the differences that were found."""
    session, bundle = run.session, saved.bundle
    where = f"resumed after {counted(bundle.step, 'update')}, {session.epochs_in_words}"
    if not bundle.step:
        where = "starts with a save from before the first update"
    if saved.has_returned:
        epochs = run.progress.total_epochs
        where = (
            f"{where}; this call, fit(epochs={epochs}), had already completed, so there is nothing to train"
        )
    notes = []
    if not saved.is_own and any(isinstance(hook, EarlyStopping) for hook in run.hooks.all):
        notes.append("EarlyStopping starts counting from scratch")
    if saved.is_own and isinstance(source, Path) and not bundle.path.is_relative_to(source):
        notes.append(f"its own folder takes precedence over {str(source)!r}")
    best, session.start.restored_step = session.start.restored_step, None
    if saved.is_own and best is not None and best != bundle.step and not saved.was_loaded:
        notes.append(
            f"restore_best had loaded the weights of step {best}, which this replaces; to train from those, "
            "pass the bundle that restore_best returns as resume=… with another checkpoint_dir"
        )
    message = "; ".join([where, *notes, *found])
    if found:
        run.reports.warn(message)
    elif notes:
        run.reports.note(message)
    else:
        run.reports.event("alert", message=message, level="info")


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

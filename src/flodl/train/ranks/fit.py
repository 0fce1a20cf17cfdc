"""`fit` on several devices: the calling process supervises ranks, and evaluates and saves between epochs."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from flodl.core import DistributedError, TrainError
from flodl.data import Loader
from flodl.distributed.coordination import CoordinatorSettings, MeetingSettings
from flodl.distributed.coverage import Epochs
from flodl.distributed.placement import Engine, open_engine
from flodl.distributed.reduction import FlatState, Reducer
from flodl.distributed.supervisor import (
    CommitReport,
    Outcome,
    SaveReport,
    Supervisor,
    SupervisorSettings,
)

from ..epoch import begin_epoch, begin_run, end_epoch, end_training
from ..evaluation.modes import modes_of
from ..evaluation.names import NAN_ON, SKIPPED, SKIPPED_ON
from ..evaluation.pieces import Pieces, compare_pieces
from ..run import Run
from .adopt import Progress, adopt, settings_for_ranks, sums_of
from .checks import check_data, check_session, check_skipped
from .coverage import committed_in, start_state
from .hook_changes import HookChanges
from .notes import differs_from_one_device, state_outside_model
from .payload import Payload, read_saved, shared_folder, write_payload
from .recorder import Recorder
from .report import RanksReport
from .settings import RankSettings
from .sync import make_remote_worker, make_worker
from .watch import watched

# 2 of 3 ranks meet, 3 of 4, 5 of 8; of two, both. A late rank brings its work to the next meeting.
QUORUM = 0.6
MEETINGS = {
    "sync": MeetingSettings(quorum=1.0),
    "cadence": MeetingSettings(quorum=QUORUM),
    # Reductions run while ranks train.
    "async": MeetingSettings(quorum=QUORUM, max_ahead=1),
}


def fit_on_ranks(
    run: Run,
    ranks: RankSettings,
    loader: Loader,
    eval_data: Any,
    optimizer: Callable[..., Optimizer] | Optimizer,
) -> None:
    """Train all epochs that are left."""
    session = run.session
    check_session(session, run.hooks)
    check_data(loader)
    run.refuse_earlier_run()
    run.start()
    if session.position.open_row is not None:
        run.begin()
        end_epoch(run, eval_data)
    if session.epochs == run.progress.total_epochs or session.stop_reason:
        return
    with shared_folder() as folder:
        RanksFit(run, ranks, loader, eval_data).train(folder, optimizer)


class RanksFit:
    """One call of `fit`: what is committed so far, and the callbacks of the supervisor."""

    def __init__(self, run: Run, ranks: RankSettings, loader: Loader, eval_data: Any) -> None:
        session = run.session
        self._run, self._ranks, self._loader, self._eval_data = run, ranks, loader, eval_data
        size, limit, count = loader.batch_size, run.progress.limit, loader.num_samples
        assert size is not None
        assert count is not None
        total = count // size * size if loader.drop_last else count
        self._num_samples = total if limit is None else min(total, limit * size)
        self._unit = size * session.train_step.settings.accumulate
        self._state = FlatState.of(session.model)
        self._progress = Progress(session.updates, [], {}, int(session.train_step.num_skipped))
        self._skipped_row = 0
        self._has_started = False
        self._changes = HookChanges(session, self._state)
        self._version = -1
        self._told: dict[str, Any] = {}
        self._recorder = Recorder(
            ranks.policy,
            num_samples=self._num_samples,
            batch_size=size,
            emit=lambda update: run.reports.event("ranks", **update),
        )
        self._supervisor: Supervisor | None = None

    def train(self, folder: Path, optimizer: Callable[..., Optimizer] | Optimizer) -> None:
        """Start the ranks, and return when the run is finished or stopped; the model has the consensus."""
        run, loader, progress = self._run, self._loader, self._progress
        session = run.session
        session.start.limit = run.progress.limit
        begin_epoch(run, loader)
        if len(session.optimizer.param_groups) != session.num_groups_built:
            # What the function builds lacks the groups that were added since.
            check_session(session, run.hooks)
            optimizer = session.optimizer
        progress.committed, progress.sums = self._resumed(), sums_of(session)
        self._recorder.resume(session.epochs, progress.committed)
        state = start_state(
            num_samples=self._num_samples,
            unit=self._unit,
            num_epochs=run.progress.total_epochs or 1,
            epoch=session.epochs,
            committed=progress.committed,
            updates=session.updates,
        )
        write_payload(self._payload(optimizer), folder / "payload.pt")
        batch = self._first_batch()
        self._report_differences(batch)
        begin_run(run, batch, self._eval_data)
        self._told = settings_for_ranks(session, modes_of(session.model))
        try:
            with open_engine(self._ranks.placement) as engine:
                self._supervisor = self._supervise(folder, state, engine)
                with watched(run, self._supervisor, self._recorder):
                    outcome = self._supervisor.run()
        except DistributedError as error:
            raise TrainError(f"training on {self._ranks.describe()} ended: {error}") from None
        finally:
            run.progress.ranks = self._recorder.report()
        self._settle(outcome)

    def _report_differences(self, batch: Any) -> None:
        """Report what is different from one device, once for each trainer."""
        run = self._run
        if run.progress.is_checked:
            return
        model, step_fn = run.session.model, run.evaluator.step_fn
        for warning in state_outside_model(model, step_fn):
            run.reports.warn(warning)
        if self._ranks.policy == "sync":
            for note in differs_from_one_device(model, step_fn, partial(self._pieces, batch)):
                run.reports.note(note)

    def _pieces(self, batch: Any) -> Pieces | None:
        """Return the loss of a batch and of its pieces, as ranks would compute it."""
        run = self._run
        if not run.session.settings.dry_pass:
            return None
        return compare_pieces(run.session.train_step, run.evaluator, batch, ["loss"])

    def _resumed(self) -> list[list[int]]:
        """Return what is trained of the current epoch."""
        session, saved = self._run.session, self._run.session.position.ranks
        if session.position.epoch_step and saved is not None:
            return [list(each) for each in saved["committed"]]
        position = self._loader.position
        return [[0, position]] if position else []

    def _payload(self, optimizer: Callable[..., Optimizer] | Optimizer) -> Payload:
        session, loader = self._run.session, self._loader
        step = session.train_step
        kept = ("clip_norm", "clip_value", "accumulate", "precision", "tier", "tail", "guard")
        options = {name: value for name, value in asdict(step.settings).items() if name in kept}
        saved = session.position.ranks or {}
        return Payload(
            model=session.model,
            optimizer=optimizer,
            step_fn=self._run.evaluator.step_fn,
            schedule=session.schedule,
            step_options=options,
            data=loader.arguments(),
            optimizer_state=session.optimizer.state_dict(),
            step_state=step.state_dict(),
            outer_state=saved.get("outer") or {},
            seed=loader.seed if session.settings.seed is None else session.settings.seed,
            first_epoch=loader.epoch - session.epochs,
            num_samples=self._num_samples,
            policy=self._ranks.policy,
            backend=self._ranks.reducer_backend,
        )

    def _first_batch(self) -> Any:
        """Return a batch for the dry pass."""
        stop = min(self._loader.batch_size or 1, self._num_samples)
        return next(self._loader.between(0, stop, epoch=self._loader.epoch)).batch

    def _supervise(self, folder: Path, state: dict[str, Any], engine: Engine) -> Supervisor:
        run, ranks = self._run, self._ranks
        path = folder / "payload.pt"
        if engine.shares_files:
            factory = partial(make_worker, path=str(path))
        else:
            factory = partial(make_remote_worker, data=path.read_bytes())
        every = run.session.settings.save_every_steps if run.saver is not None else None
        supervisor = Supervisor(
            factory,
            ranks=engine.ranks,
            launcher=engine.launcher,
            host=engine.host,
            may_wait=engine.may_wait,
            epochs=Epochs.from_state(state["epochs"]),
            settings=CoordinatorSettings(
                start_ranks=engine.start_ranks,
                shared=ranks.policy == "sync",
                meeting=MEETINGS[ranks.policy],
                save_every_batches=every or 0,
            ),
            supervision=SupervisorSettings(),
            reducer=partial(Reducer, backend=ranks.reducer_backend, wire=ranks.wire, outer=ranks.outer),
            resume_state=state,
            on_commit=self._on_commit,
            on_save=self._on_save,
            on_event=self._recorder.on_event,
            on_warning=run.reports.warn,
        )
        engine.attend(supervisor)
        return supervisor

    def _on_commit(self, report: CommitReport) -> None:
        """Count committed work, and report it."""
        run, progress = self._run, self._progress
        session = run.session
        if not report.work:
            # Ranks have started now; the duration of an epoch is that of its training.
            if not self._has_started:
                session.epoch_start_s = time.perf_counter()
            self._has_started = True
            return
        sums = dict(report.sums)
        skipped = int(sums.pop(SKIPPED, (0.0, 0.0))[0])
        skipped_on = [int(name[len(SKIPPED_ON) :]) for name in sums if name.startswith(SKIPPED_ON)]
        for name in sums:
            if name.startswith(NAN_ON):
                rank, _, value = name[len(NAN_ON) :].partition(".")
                run.progress.nan_ranks.setdefault(value, set()).add(int(rank))
        sums = {name: each for name, each in sums.items() if not name.startswith((SKIPPED_ON, NAN_ON))}
        for name, (total, weight) in sums.items():
            known = progress.sums.get(name, (0.0, 0.0))
            progress.sums[name] = (known[0] + total, known[1] + weight)
        progress.updates = report.committed
        progress.num_skipped += skipped
        self._skipped_row = check_skipped(session, report, skipped, on=skipped_on, row=self._skipped_row)
        reporter = run.reports.current
        if reporter is not None and not reporter.is_silent:
            size = self._loader.batch_size or 1
            done = sum(stop - start for each in report.work for start, stop in each[3])
            self._recorder.samples_in_epoch += done
            step = -(-self._recorder.samples_in_epoch // size)
            total, weight = sums.get("loss", (0.0, 0.0))
            # Without a loss, updates were skipped as not finite, or interrupted because a rank was lost.
            mean = total / weight if weight else torch.nan
            loss = torch.tensor(mean) if weight or skipped else None
            reporter.progress(session.epochs, step, run.progress.num_batches)
            if loss is not None:
                reporter.update(session.epochs, step, progress.updates, loss)

    def _on_save(self, report: SaveReport) -> bool:
        """End an epoch, or save within one; return True to end the run."""
        run, loader, progress = self._run, self._loader, self._progress
        session = run.session
        saved = read_saved(report.value)
        self._version = report.point.version
        coordinator = saved["coordinator"]
        if coordinator["epochs"]["current"] == session.epochs:
            progress.committed = committed_in(coordinator, session.epochs)
            adopt(run, loader, self._state, saved, progress)
            if run.saver is not None:
                run.saver.save(wait=False, reason=f"update {session.updates}")
            return False
        progress.committed = [[0, self._num_samples]]
        adopt(run, loader, self._state, saved, progress)
        return self._end_epoch()

    def _end_epoch(self) -> bool:
        run, loader, progress = self._run, self._loader, self._progress
        session = run.session
        epoch = loader.epoch
        end_training(run)
        loader.set_epoch(epoch + 1)
        self._changes.begin()
        with run.hooks.watched(self._changes.around):
            end_epoch(run, self._eval_data)
            progress.committed, progress.sums = [], {}
            self._recorder.samples_in_epoch = 0
            if session.epochs == run.progress.total_epochs or session.stop_reason:
                return True
            run.exit_if_asked()
            begin_epoch(run, loader)
        for warning in self._changes.check():
            run.reports.warn(warning)
        told = settings_for_ranks(session, modes_of(session.model))
        assert self._supervisor is not None
        if told != self._told:
            self._told = told
            self._supervisor.tell(told)
        return False

    def _settle(self, outcome: Outcome) -> None:
        """Take over what was committed since the last epoch, if the run was stopped within one."""
        run, progress = self._run, self._progress
        session = run.session
        if outcome.consensus is not None and outcome.version != self._version and progress.updates:
            assert outcome.donated is not None
            donated = torch.load(io.BytesIO(outcome.donated), map_location="cpu", weights_only=False)
            saved = {**donated, "flat": outcome.consensus, "outer": outcome.outer}
            progress.committed = committed_in(outcome.state, session.epochs)
            if progress.committed:
                adopt(run, self._loader, self._state, saved, progress)
        run.exit_if_asked()


__all__ = ["RanksReport", "fit_on_ranks"]

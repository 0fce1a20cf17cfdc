"""`Trainer`: from data to a trained model, resumable at every update."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.checkpoint import Bundle, Policy
from flodl.core import TrainError
from flodl.core.formats import a_type, counted
from flodl.core.integers import as_integer
from flodl.core.metric_modes import Mode
from flodl.core.usage.tracebacks import hide_own_frames, hides_own_frames
from flodl.data import Loader
from flodl.distributed.reduction import OuterOptimizer
from flodl.engine import (
    Precision,
    Tail,
    TierChoice,
    TrainStep,
    by_position,
    num_samples,
    report_elsewhere,
    taking_a_dict,
)
from flodl.graph import FlowBuilder
from flodl.monitor import Monitor
from flodl.observe import Trend, unknown_metric
from flodl.optim import Schedule

from .batches.batch_lists import USUAL, Usual, hint_at_batches
from .batches.loaders import check_repeatable, check_several_epochs, preserve_position
from .best_weights import restore_best
from .build import build_optimizer, select_device
from .callbacks.dispatch import Hooks
from .callbacks.hooks import HOOKS
from .checks.attributes import CheckedAttributes
from .checks.calls import explained
from .checks.evaluated_values import evaluate_once
from .checks.start import chosen_on_training_data
from .checks.step_function import check_step_function
from .checks.unloaded import note_unloaded_saves
from .epoch import run_epoch
from .evaluation.ema import AveragedWeights
from .evaluation.evaluator import Evaluator, as_arguments
from .evaluation.metrics import check_metrics
from .evaluation.outputs import Outputs
from .evaluation.step_errors import check_signature
from .faults.nonfinite import OVERFLOWS_IN_A_ROW, SkippedUpdates
from .find_lr.result import FindLrResult
from .find_lr.search import find_lr
from .learning_rate import scale_rates
from .ranks.checks import check_settings, not_on_ranks
from .ranks.fit import fit_on_ranks
from .ranks.settings import Backend, Wire, check_tail, rank_settings
from .ranks.settings import Policy as RankPolicy
from .record.user_settings import user_settings
from .result import FitResult
from .resume import resume_run
from .run import Run
from .session import Session
from .settings import DiskPolicy, NanPolicy, TrainerSettings, unused_without_folder


class Trainer(CheckedAttributes):
    """Train a model on one device, or on several with `devices=`.

    `fit` runs everything; `epoch` and `step` are for a custom loop; `TrainStep` and `Loader` are the parts
    underneath. All of them produce the same losses. With a `checkpoint_dir`, a run can be killed at any
    moment and resumes where it stopped.

    >>> model = nn.Linear(2, 1)
    >>> trainer = Trainer(
    ...     model,
    ...     lambda model, x, y: (model(x) - y).square().mean(),
    ...     optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
    ...     device="cpu",
    ...     monitor=False,
    ... )
    >>> result = trainer.fit((torch.ones(8, 2), torch.zeros(8, 1)), epochs=2, batch_size=4)
    >>> [row["epoch"] for row in result.history], result.steps
    ([1, 2], 4)
    """

    # The averaged weights, with ema=.
    average: AveragedWeights

    @explained
    def __init__(
        self,
        model: nn.Module,
        step_fn: Callable[..., Any],
        *,
        optimizer: Callable[[list[dict[str, Any]]], Optimizer] | Optimizer,
        schedule: Schedule | Callable[[int], float] | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
        precision: Precision = "fp32",
        tier: TierChoice = "auto",
        tail: Tail = "eager",
        device: str | torch.device = "auto",
        devices: int | Sequence[str | torch.device] | None = None,
        policy: RankPolicy = "cadence",
        backend: Backend = "auto",
        outer: str | OuterOptimizer = "mean",
        wire: Wire = "fp32",
        monitor: Monitor | bool | None = None,
        checkpoint_dir: str | PathLike[str] | None = None,
        save_every: int | None = 1,
        save_every_steps: int | None = None,
        keep: Policy | None = None,
        when_disk_fails: DiskPolicy = "continue",
        log_every: int | None = 1,
        nan: NanPolicy = "stop",
        ema: float | None = None,
        metrics: Mapping[str, Any] | None = None,
        outputs: Outputs | None = None,
        hooks: Iterable[Any] | None = (),
        seed: int | None = None,
        dry_pass: bool = True,
        config: Any = None,
    ) -> None:
        if isinstance(model, type) and issubclass(model, nn.Module):
            raise TrainError(f"the model is the class {model.__name__}. Create one: {model.__name__}(…).")
        if not isinstance(model, nn.Module):
            raise TrainError(
                f"the model is {a_type(model)}. Write Trainer("
                f"{'builder.build()' if isinstance(model, FlowBuilder) else 'model'}, step_fn, optimizer=…)."
            )
        ranks = rank_settings(devices, device=device, policy=policy, backend=backend, outer=outer, wire=wire)
        if ranks is not None:
            device = ranks.devices[0]
        # One device is trained in this process, in the ordinary way.
        is_one = ranks is not None and ranks.is_local and len(ranks.devices) == 1
        self._ranks = None if is_one else ranks
        settings = TrainerSettings(
            save_every=save_every,
            save_every_steps=save_every_steps,
            log_every=log_every,
            nan=nan,
            when_disk_fails=when_disk_fails,
            ema=ema,
            seed=seed,
            dry_pass=dry_pass,
            **({} if self._ranks is None else self._ranks.recorded()),
        )
        if self._ranks is not None:
            check_settings(settings)
            check_tail(self._ranks, tail)
        unused = [] if checkpoint_dir is not None else unused_without_folder(settings, keep)
        check_step_function(step_fn, model)
        self.device = select_device(device)
        self.model = model.to(self.device)
        self.optimizer = build_optimizer(
            optimizer, self.model, saves=checkpoint_dir is not None or ranks is not None
        )
        self._make_optimizer = optimizer
        self.step_fn, self.precision = step_fn, precision
        self.train_step = TrainStep(
            self.model,
            self.optimizer,
            step_fn,
            schedule=schedule,
            clip_norm=clip_norm,
            clip_value=clip_value,
            accumulate=accumulate,
            precision=precision,
            tier=tier,
            tail=tail,
            guard="gradients",
        )
        report_elsewhere(self.train_step)
        self._average = None if settings.ema is None else AveragedWeights(self.model, decay=settings.ema)
        if self._average is not None:
            self.average = self._average
        skipped: SkippedUpdates | None = None
        if nan != "skip":
            in_a_row = OVERFLOWS_IN_A_ROW if precision == "fp16" else 1
            skipped = SkippedUpdates(self.train_step.num_skipped, in_a_row=in_a_row)
        session = Session(
            self.model,
            self.optimizer,
            schedule,
            self.train_step,
            self._average,
            self.device,
            settings,
            skipped,
        )
        self._run = Run(
            session,
            Evaluator(
                self.model,
                taking_a_dict(step_fn),
                self.device,
                precision,
                self._average,
                check_metrics(metrics),
                outputs,
                masked=tail == "pad",
            ),
            Hooks(hooks, self),
            monitor=monitor,
            checkpoint_dir=checkpoint_dir,
            keep=keep,
            config=user_settings(config, sys._getframe(2)),
        )
        for name in unused:
            self._run.reports.warn(f"{name} has no effect without a checkpoint_dir: nothing will be saved.")
        if outputs is not None and metrics is None:
            self._run.reports.warn("outputs= has no effect without metrics=: nothing calls it.")

    @property
    def history(self) -> list[dict[str, Any]]:
        """A row of metrics for each completed epoch."""
        return self._run.session.history

    @property
    def stop_reason(self) -> str:
        """Why the training was stopped, or ""; `fit` and `running` reset it."""
        return self._run.session.stop_reason

    @property
    def epochs(self) -> int:
        """The number of completed epochs."""
        return self._run.session.epochs

    @property
    def updates(self) -> int:
        """The number of optimizer updates."""
        return self.train_step.updates

    @property
    def run_dir(self) -> Path | None:
        """The folder of the run, if it has one."""
        return None if self._run.directory is None else self._run.directory.path

    @explained
    def fit(
        self,
        train_data: Any,
        *,
        epochs: int,
        batch_size: int | None = None,
        eval_data: Any = None,
        resume: str | PathLike[str] | bool = "auto",
        allow_different_structure: bool = False,
        limit: int | None = None,
    ) -> FitResult:
        """Train until `epochs` epochs are done, including those before a resume.

        Before anything is trained, a dry pass checks names and shapes of values, evaluation and saving.
        `limit` is the number of batches in each epoch and each evaluation, to try out everything quickly.

        `resume` is "auto" (resume if there is a bundle), "must", "never", or the folder of another run, or
        one of its bundles, to start from. A saved run of a graph with a different structure is rejected
        unless `allow_different_structure` is True. With a `checkpoint_dir`, SIGTERM and SIGINT save the run
        and exit the program with code 75.
        """
        self._refuse_average("fit")
        epochs, limit = as_integer(epochs), as_integer(limit)
        # A mistake in the shape of the data shows in the first update.
        makes_batches = batch_size is not None or isinstance(train_data, Loader)
        as_samples = hint_at_batches(train_data, applies=lambda: makes_batches and not self.updates)
        self._run.session.fit_calls.begin(self.optimizer)
        with self.running(epochs, limit=limit), as_samples:
            loader = self.loader(train_data, batch_size)
            self._run.progress.eval_data = eval_data
            resume_run(
                self._run,
                loader,
                resume,
                allow_different_structure=allow_different_structure,
                max_epochs=epochs,
            )
            if not self._run.progress.has_returned:
                for warning in chosen_on_training_data(train_data, eval_data, self._run.watched):
                    self._run.reports.warn(warning)
                self._train(loader, eval_data, epochs)
        self._run.session.fit_calls.end(epochs, self.optimizer, self.train_step.schedule)
        return self.result()

    def _train(self, loader: Loader, eval_data: Any, epochs: int) -> None:
        """Train the epochs that are left, here or on several devices."""
        if epochs - self.epochs > 1:
            check_repeatable(eval_data)
            check_several_epochs(loader)
        if eval_data is None:
            self._run.report_no_evaluation()
        if self._ranks is not None:
            fit_on_ranks(self._run, self._ranks, loader, eval_data, self._make_optimizer)
        while self.epochs < epochs and not self.stop_reason:
            for batch in self.epoch(loader, eval_data=eval_data):
                self.step(batch)

    @explained
    def running(self, epochs: int, *, limit: int | None = None) -> AbstractContextManager[None]:
        """Return a context that sets up signals, folder, monitor and garbage collection, and closes them.

        The folder and the journal are written once the first batch is available: a start that is rejected
        changes nothing.
        """
        return self._run.open(as_integer(epochs), as_integer(limit))

    @explained
    def resume(
        self,
        data: Any,
        batch_size: int | None = None,
        *,
        how: str | PathLike[str] | bool = "auto",
        allow_different_structure: bool = False,
    ) -> bool:
        """Restore the newest intact bundle, and return whether there was one; see `resume` of `fit`.

        A run that has begun in this process simply continues.
        """
        loader = self.loader(data, batch_size)
        self._run.report_no_folder(how)
        return resume_run(self._run, loader, how, allow_different_structure=allow_different_structure)

    @explained
    def epoch(
        self, data: Any, batch_size: int | None = None, *, eval_data: Any = None, limit: int | None = None
    ) -> Iterator[Any]:
        """Yield the batches of the current epoch, each to be passed to `step`, then evaluate and save.

        A loop that was left early continues after the last batch that was trained on when `epoch` is called
        again; if that was the last one of the epoch, the epoch ends as usual. A stopped run yields no batch:
        `while trainer.epochs < n and not trainer.stop_reason`.
        """
        self._refuse_average("epoch")
        if self._ranks is not None:
            raise not_on_ranks("epoch")
        self._run.hooks.refuse_inside(
            "epoch", HOOKS, "Hooks are called within an epoch or a run. Call trainer.epoch in your own loop."
        )
        return run_epoch(self._run, data, batch_size, eval_data, as_integer(limit))

    def step(self, *batch: Any, **named: Any) -> Tensor:
        """Train on one batch, and return its loss: `step(batch)`, `step(x, y)` or `step(**batch)`.

        A step outside of an epoch is not part of the row of one.
        """
        try:
            run, cursor, average = self._run, self._run.cursor, self._average
            if average is not None and average.is_applied:
                average.refuse_inside("step")
            if self._ranks is not None:
                raise not_on_ranks("step")
            run.hooks.refuse_inside(
                "step",
                ("on_step_end", "on_save"),
                "A step calls this hook again, endlessly. Add the batch to the data, or write a loop: "
                "for batch in trainer.epoch(data, batch_size): trainer.step(batch).",
            )
            if named:
                arguments = by_position(run.evaluator.step_fn, batch, named)
                whole = cursor.whole_of(arguments if batch else named, arguments)
            else:
                whole = batch[0] if len(batch) == 1 else batch
                arguments = whole if type(whole) is tuple else as_arguments(whole)
            samples = cursor.num_samples if whole is cursor.batch else cursor.num_samples_of(whole)
            if samples is None and run.progress.num_batches == 1 and cursor.is_iterating:
                # The weight of the only batch of an epoch has no effect, so its samples are not noted.
                samples = num_samples(arguments) or None
            steps, begins_window = self.train_step.steps, self.train_step.is_between_updates
            if average is not None and not steps:
                average.follow()
            if run.is_pending:
                run.start()
                run.begin()
            elif not steps:
                run.refuse_earlier_run()
            if not cursor.is_of_epoch(whole):
                run.session.note_step_outside()
            try:
                loss = self.train_step.call(arguments, samples=samples)
            except BaseException as error:
                if isinstance(error, TypeError):
                    check_signature(taking_a_dict(self.step_fn), arguments, error)
                if self.train_step.steps > steps:
                    # The interrupt came too late: the batch was trained on and must not be repeated.
                    run.session.position.epoch_step += 1
                    run.after_update()
                raise
            if run.averages_windows and self.train_step.steps > steps:
                weight = num_samples(arguments) if samples is None else samples
                run.add_to_window(loss, weight, is_first=begins_window)
            run.progress.followed_step = None
            run.after_batch(whole, loss, steps_before=steps)
            run.progress.followed_step = run.session.position.epoch_step
            if cursor.batch is None:
                run.report_no_epoch()
            return loss
        except BaseException as error:
            hide_own_frames(error)
            raise

    @explained
    def evaluate(self, data: Any, batch_size: int | Usual | None = USUAL) -> dict[str, float]:
        """Return loss, named values and metrics over a dataset, counting each sample once.

        With `batch_size=None`, a list is read as a list of whole batches.

        With `ema`, the same values of the averaged weights follow, as "ema_loss" and so on. An evaluation
        does not change the RNG state of the training or the position of a loader.
        """
        self._refuse_average("evaluate")
        note_unloaded_saves(self._run)
        with preserve_position(data), hint_at_batches(data):
            return evaluate_once(self._run, self._run.loaders.evaluation_batches(data, batch_size))

    @explained
    def find_lr(
        self,
        data: Any,
        batch_size: int | None = None,
        *,
        min_lr: float = 1e-7,
        max_lr: float = 1.0,
        num_steps: int = 100,
        stop_factor: float | None = 4.0,
    ) -> FindLrResult:
        """Train a copy for `num_steps` updates with a rising learning rate, and suggest a rate.

        The rate rises from `min_lr` to `max_lr` in equal ratios. The search ends early if the loss is not
        finite, or rises to `stop_factor` times its best; with None, only the first. Parameter groups keep the
        ratios of their rates. Nothing else changes: the model, the optimizer, the schedule, the random state
        and the position of a loader are as before.
        """
        self._refuse_average("find_lr")
        if self._ranks is not None:
            raise not_on_ranks("find_lr")
        with hint_at_batches(data, applies=lambda: batch_size is not None or isinstance(data, Loader)):
            return find_lr(
                self._run.session,
                self._run.loaders,
                data,
                batch_size,
                min_lr=min_lr,
                max_lr=max_lr,
                num_steps=num_steps,
                stop_factor=stop_factor,
            )

    @explained
    def restore_best(self, metric: str | None = None, *, mode: Mode | None = None) -> Bundle:
        """Load the weights of the best kept save into the model, and return its bundle.

        By default the metric is that of `keep=best(…)` or of `EarlyStopping`, else "eval_loss". For a
        metric of averaged weights, such as "eval_ema_loss", the averages are loaded. With `ema`, the average
        is that of the save, too. Parameters that only the optimizer has, such as loss weights, are loaded
        as well. The state of the optimizer does not change.
        """
        self._refuse_average("restore_best")
        return restore_best(self._run, metric, mode)

    def result(self) -> FitResult:
        """Return the result of the run so far."""
        return self._run.result()

    @hides_own_frames
    def loader(self, data: Any, batch_size: int | None = None) -> Loader:
        """Return the loader for the training: the one that is passed, or one over the data."""
        return self._run.loaders.for_training(data, batch_size, epoch=self.epochs)

    @hides_own_frames
    def trend(self, metric: str) -> Trend:
        """Return the history of a metric, one value for each epoch; an unknown name raises."""
        known = dict.fromkeys(name for row in self.history for name in row)
        if known and metric not in known:
            raise unknown_metric(metric, known)
        return Trend([row[metric] for row in self.history if metric in row], name=metric)

    def stop(self, reason: str = "stopped") -> None:
        """End the training after the current update."""
        self._run.session.stop_reason = reason or "stopped"

    @explained
    def scale_lr(self, factor: float, *, least: float = 0.0) -> None:
        """Multiply the learning rate by a factor from now on, with or without a schedule."""
        scale_rates(self.optimizer, self.train_step.schedule, factor, least)

    @explained
    def save(self, *, wait: bool = True, reason: str = "") -> None:
        """Save a bundle now, or at the end of the current accumulation window; `reason` is reported."""
        if self._run.saver is None:
            raise TrainError("there is nowhere to save to. Set a checkpoint_dir.")
        self._refuse_average("save")
        self._run.hooks.refuse_inside(
            "save",
            ("on_save",),
            "A save calls this hook again, endlessly. Call trainer.save in another hook, such as "
            "on_epoch_end.",
        )
        self._run.begin()
        self._run.saver.save_soon(wait=wait, reason=reason)

    def _refuse_average(self, action: str) -> None:
        if self._average is not None:
            self._average.refuse_inside(action)

    def __repr__(self) -> str:
        progress = f"{counted(self.epochs, 'epoch')} and {counted(self.updates, 'update')} done"
        return f"Trainer({type(self.model).__name__} on {self.device}, {progress})"

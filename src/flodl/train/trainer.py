"""`Trainer`: from data to a trained model, resumable at every update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.checkpoint import Policy
from flodl.core import TrainError
from flodl.data import Loader
from flodl.engine import TrainStep
from flodl.engine.settings import Precision, Tail, TierChoice
from flodl.monitor import Monitor
from flodl.observe import Trend
from flodl.optim import Schedule

from .batches.loaders import place_kept, refuse_iterator
from .build import chosen_device, made_optimizer
from .callbacks.dispatch import Hooks
from .epoch import begin_epoch, close_training, finish_epoch, is_stopped
from .evaluation.ema import AveragedWeights
from .evaluation.evaluator import Evaluator, Outputs, as_arguments, checked
from .evaluation.step_errors import refuse_misfit
from .learning_rate import scale_rates
from .result import FitResult
from .resume import resume, wish_of
from .run import Run
from .settings import DiskPolicy, NanPolicy, TrainerSettings


class Trainer:
    """Train a model on one device: three doors, one loss sequence.

    `fit` runs everything; `epoch` and `step` give the loop back; `TrainStep` and `Loader` are the bare
    parts. With a `checkpoint_dir` the run can be killed at any moment and goes on where it was.

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
        monitor: Monitor | bool | None = None,
        checkpoint_dir: str | PathLike[str] | None = None,
        save_every: int | None = 1,
        save_every_steps: int | None = None,
        keep: Policy | None = None,
        when_disk_fails: DiskPolicy = "go on",
        log_every: int | None = 1,
        nan: NanPolicy = "stop",
        ema: float | None = None,
        metrics: Mapping[str, Any] | None = None,
        outputs: Outputs | None = None,
        hooks: Iterable[Any] = (),
        seed: int = 0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TrainError(
                f"the model is a {type(model).__name__}. Write Trainer(model, step_fn, optimizer=…)."
            )
        settings = TrainerSettings(
            save_every=save_every,
            save_every_steps=save_every_steps,
            log_every=log_every,
            nan=nan,
            when_disk_fails=when_disk_fails,
            ema=ema,
            seed=seed,
        )
        if nan == "rollback" and checkpoint_dir is None:
            raise TrainError("nan='rollback' goes back to a bundle. Give the trainer a checkpoint_dir.")
        self.device = chosen_device(device)
        self.model = model.to(self.device)
        self.optimizer = made_optimizer(optimizer, self.model)
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
        self.average = None if ema is None else AveragedWeights(self.model, decay=ema)
        self._run = Run(
            self.train_step,
            Evaluator(
                self.model,
                step_fn,
                self.device,
                precision,
                self.average,
                checked(metrics),
                outputs,
                masked=tail == "pad",
            ),
            optimizer=self.optimizer,
            schedule=schedule,
            settings=settings,
            hooks=Hooks(hooks, self),
            monitor=monitor,
            checkpoint_dir=checkpoint_dir,
            keep=keep,
        )

    @property
    def history(self) -> list[dict[str, Any]]:
        """A row of metrics for each epoch that is done."""
        return self._run.history

    @property
    def stop_reason(self) -> str:
        """Why the training was stopped, or nothing; `fit` and `running` begin without."""
        return self._run.stop_reason

    @property
    def epochs(self) -> int:
        """How many epochs are done."""
        return self._run.epochs

    @property
    def updates(self) -> int:
        """How many optimizer updates are done."""
        return self.train_step.updates

    @property
    def run_dir(self) -> Path | None:
        """Where the run is kept."""
        return None if self._run.directory is None else self._run.directory.path

    def fit(
        self,
        train_data: Any,
        *,
        epochs: int,
        batch_size: int | None = None,
        eval_data: Any = None,
        resume: str | PathLike[str] | bool = "auto",
    ) -> FitResult:
        """Train until `epochs` epochs are done, counting those of before a resume.

        `resume` is "auto" (go on if there is something to go on from), "must", "never", or the folder of
        another run, or one of its bundles, to start from. With a `checkpoint_dir`, SIGTERM and SIGINT save
        the run and end the program with exit code 75.
        """
        loader, wish = self.loader(train_data, batch_size), wish_of(resume)
        with self.running(epochs):
            self.resume(loader, how=wish)
            if self.epochs > epochs:
                raise TrainError(
                    f"epochs={epochs}, and this run has {self.epochs} behind it. Give at least as many, "
                    "or begin anew with another checkpoint_dir."
                )
            if epochs - self.epochs > 1:
                refuse_iterator(eval_data)
            while self.epochs < epochs and not self.stop_reason:
                for batch in self.epoch(loader, eval_data=eval_data):
                    self.step(batch)
        return self.result()

    def running(self, epochs: int) -> AbstractContextManager[None]:
        """Set up what lasts as long as a run (folder, monitor, signals, collector), and end it well."""
        return self._run.going(epochs)

    def resume(
        self, data: Any, batch_size: int | None = None, *, how: str | PathLike[str] | bool = "auto"
    ) -> bool:
        """Go on from the newest whole bundle, and say whether there was one; `how` is the `resume` of `fit`.

        A run that has begun in this process simply goes on.
        """
        return resume(self._run, self.loader(data, batch_size), how)

    def epoch(self, data: Any, batch_size: int | None = None, *, eval_data: Any = None) -> Iterator[Any]:
        """Give the batches of the current epoch, each to be handed to `step`; what ends an epoch follows.

        A loop that is left early goes on behind the last batch that was trained on when `epoch` is called
        again. A run that was stopped gives no batch: `while trainer.epochs < n and not trainer.stop_reason`.
        """
        run, loader = self._run, self.loader(data, batch_size)
        if is_stopped(run):
            return
        if run.place.open_row is None:
            begin_epoch(run, loader)
            for batch in run.handing.batches(loader):
                yield batch
                if (run.notice or run.stop_reason) and self.train_step.is_between_updates:
                    if run.notice:
                        run.save_and_leave()
                    return
            close_training(run)
        finish_epoch(run, eval_data)

    def step(self, *batch: Any) -> Tensor:
        """Train on one batch, and give its loss: `step(batch)`, or its parts as in `step(x, y)`."""
        given = batch[0] if len(batch) == 1 else batch
        arguments = given if type(given) is tuple else as_arguments(given)
        steps = self.train_step.steps
        try:
            loss = self.train_step.call(arguments, samples=self._run.handing.counts.of(given))
        except BaseException as error:
            if isinstance(error, TypeError):
                refuse_misfit(self.step_fn, arguments, error)
            if self.train_step.steps > steps:
                # An interrupt that came too late: the batch was trained on, and is not to come again.
                self._run.count_batch()
            raise
        self._run.after_batch(given, loss)
        return loss

    def evaluate(self, data: Any, batch_size: int | None = None) -> dict[str, float]:
        """Give loss, named values and metrics over a data set, each sample counted once.

        The averaged weights are used where there are any. Random numbers of the training stay untouched, and
        a loader stays where it stands.
        """
        with place_kept(data):
            return self._run.evaluator(self._run.feeding.for_evaluation(data, batch_size))

    def result(self) -> FitResult:
        """Give what the run came to so far."""
        return self._run.result()

    def loader(self, data: Any, batch_size: int | None = None) -> Loader:
        """Give the loader that feeds the training: the one that is given, or one over the data."""
        return self._run.feeding.for_training(data, batch_size, epoch=self.epochs)

    def trend(self, metric: str) -> Trend:
        """Give the history of a metric, one value for each epoch."""
        return Trend([row[metric] for row in self.history if metric in row])

    def stop(self, reason: str = "stopped") -> None:
        """End the training after the update that is under way."""
        self._run.stop_reason = reason or "stopped"

    def scale_lr(self, factor: float, *, least: float = 0.0) -> None:
        """Multiply the learning rate by a factor from here on, also under a schedule."""
        scale_rates(self.optimizer, self.train_step.schedule, factor, least)

    def save(self, *, wait: bool = True, reason: str = "") -> None:
        """Save a bundle now, within a window of accumulation at its end. `reason` is told with it."""
        self._run.save_soon(wait=wait, reason=reason)

    def __repr__(self) -> str:
        done = f"{self.epochs} epochs and {self.updates} updates done"
        return f"Trainer({type(self.model).__name__} on {self.device}, {done})"

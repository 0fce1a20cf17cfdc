"""`Trainer`: from data to a trained model, resumable at every update."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.checkpoint import Policy
from flodl.core import TrainError, WriteError, log
from flodl.data import Loader
from flodl.engine import TrainStep, calm_collector
from flodl.engine.hygiene import Collector
from flodl.engine.settings import Precision, Tail, TierChoice
from flodl.monitor import Monitor
from flodl.observe import Trend
from flodl.optim import Schedule

from .average import AveragedWeights
from .epochs import begin_epoch, close_training, finish_epoch
from .evaluation import Outputs, as_arguments, evaluate
from .feeding import Feeding
from .finite import FiniteWatch
from .hooks import Hooks
from .keeping import RunDirectory, found_bundle, read_parts
from .leaving import Notice
from .modes import modes_kept
from .randomness import untouched_randomness
from .rates import scale_rates
from .result import FitResult
from .rollback import meet_not_finite
from .settings import DiskPolicy, NanPolicy, TrainerSettings
from .setup import chosen_device, described, made_optimizer
from .state import Place, load_parts, parts_of
from .telling import Telling, telling

COLLECT_EARLY_EVERY = 1024


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
        log_every: int | None = 50,
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
        self._settings = TrainerSettings(
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
        self.step_fn = step_fn
        self.precision = precision
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
        self.history: list[dict[str, Any]] = []
        self.stop_reason = ""
        self.average = None if ema is None else AveragedWeights(self.model, decay=ema)
        self._schedule, self._metrics, self._outputs = schedule, dict(metrics or {}), outputs
        self._hooks = Hooks(hooks)
        self._every_step = self._hooks.wants("on_step_end")
        self._monitor = monitor
        # A monitor of the user's sees several runs, and is shown the model once.
        self._is_shown = False
        self._directory = self._run_directory(checkpoint_dir, keep)
        self._save_every_steps = 0 if self._directory is None else save_every_steps or 0
        self._feeding = Feeding(self.device, seed)
        self._place = Place()
        self._finite = FiniteWatch(self.train_step.num_skipped) if nan != "skip" else None
        self._notice = Notice()
        self._telling: Telling | None = None
        self._collector: Collector | None = None
        self._updates = self._rollbacks = 0
        self._saved_at: tuple[int, int] | None = None
        self._num_batches: int | None = None
        self._epoch_began_s = 0.0

    @property
    def epochs(self) -> int:
        """How many epochs are done."""
        return len(self.history)

    @property
    def updates(self) -> int:
        """How many optimizer updates are done."""
        return self.train_step.updates

    @property
    def run_dir(self) -> Path | None:
        """Where the run is kept."""
        return None if self._directory is None else self._directory.path

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
        another run to start from. With a `checkpoint_dir`, SIGTERM and SIGINT save the run and end the
        program with exit code 75.
        """
        loader = self.loader(train_data, batch_size)
        with self.running(epochs):
            self.resume(loader, how=resume)
            while self.epochs < epochs and not self.stop_reason:
                for batch in self.epoch(loader, eval_data=eval_data):
                    self.step(batch)
        return self.result()

    @contextmanager
    def running(self, epochs: int) -> Iterator[None]:
        """Set up what lasts as long as a run (monitor, signals, collector, writer), and end it well."""
        if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1:
            raise TrainError(f"epochs={epochs!r}. Give a whole number from 1 up.")
        if self._telling is not None:
            raise TrainError("this trainer is running already. Make another one for a run inside a run.")
        self.stop_reason, self._epoch_began_s = "", time.perf_counter()
        if self._directory is not None:
            self._directory.write_config(described(self, epochs))
        with ExitStack() as stack:
            self._telling = stack.enter_context(self._told(epochs))
            stack.callback(setattr, self, "_telling", None)
            self._is_shown = isinstance(self._monitor, Monitor)
            stack.enter_context(modes_kept(self.model))
            stack.callback(self.train_step.close)
            if self._directory is not None:
                stack.enter_context(self._notice.listening())
                stack.callback(self._directory.close)
            self._collector = stack.enter_context(calm_collector())
            stack.callback(setattr, self, "_collector", None)
            self._hooks.call("on_start", trainer=self)
            yield
            self._save_the_end()
            if self._notice:
                self._save_and_leave()
            self._hooks.call("on_end", trainer=self, result=self.result())

    def resume(
        self, data: Any, batch_size: int | None = None, *, how: str | PathLike[str] | bool = "auto"
    ) -> bool:
        """Go on from the newest whole bundle, and say whether there was one; `how` is the `resume` of `fit`.

        A run that has begun in this process simply goes on.
        """
        loader = self.loader(data, batch_size)
        bundle = None if self.updates else found_bundle(self._directory, how)
        if bundle is None:
            return False
        load_parts(self, read_parts(bundle), loader=loader)
        self._updates = self.updates
        if self._directory is not None and bundle.path.parent == self._directory.bundles:
            self._saved_at = (self.updates, self.epochs)
        self._tell("alert", message=f"resumed from step {bundle.step}, epoch {self.epochs}", level="info")
        self._hooks.call("on_resume", trainer=self, epoch=self.epochs)
        return True

    def epoch(self, data: Any, batch_size: int | None = None, *, eval_data: Any = None) -> Iterator[Any]:
        """Give the batches of the current epoch, each to be handed to `step`; what ends an epoch follows.

        A loop that is left early goes on with the next batch when `epoch` is called again.
        """
        loader = self.loader(data, batch_size)
        if self._place.open_row is None:
            begin_epoch(self, loader)
            for batch in loader:
                yield batch
                if (self._notice or self.stop_reason) and self.train_step.is_between_updates:
                    if self._notice:
                        self._save_and_leave()
                    return
            close_training(self)
        finish_epoch(self, eval_data)

    def step(self, batch: Any) -> Tensor:
        """Train on one batch, and give its loss."""
        train_step = self.train_step
        loss = train_step(*batch) if type(batch) is tuple else train_step(*as_arguments(batch))
        self._place.epoch_step += 1
        updated = train_step.updates != self._updates
        if updated:
            self._after_update()
        if self._telling is not None:
            self._telling.step(self.epochs, self._place.epoch_step, self._num_batches, self.updates, loss)
        if self._every_step:
            place = {"epoch": self.epochs, "step": self.updates}
            self._hooks.call("on_step_end", trainer=self, batch=batch, loss=loss, **place)
        if updated and self._save_every_steps and self._updates % self._save_every_steps == 0:
            self.save(wait=False, reason=f"update {self._updates}")
        if self._collector is not None and self._place.epoch_step % COLLECT_EARLY_EVERY == 0:
            self._collector.collect_if_growing()
        return loss

    def evaluate(self, data: Any, batch_size: int | None = None) -> dict[str, float]:
        """Give loss, named values and metrics over a data set, each sample counted once.

        The averaged weights are used where there are any. Random numbers of the training stay untouched.
        """
        return self._evaluate(self._feeding.for_evaluation(data, batch_size), between=lambda: None)

    def result(self) -> FitResult:
        """Give what the run came to so far."""
        return FitResult(
            history=[dict(row) for row in self.history],
            steps=self.updates,
            status="stopped" if self.stop_reason else "finished",
            reason=self.stop_reason,
            run_dir=self.run_dir,
            report=self.train_step.report(),
        )

    def loader(self, data: Any, batch_size: int | None = None) -> Loader:
        """Give the loader that feeds the training: the one that is given, or one over the data."""
        return self._feeding.for_training(data, batch_size, epoch=self.epochs)

    def trend(self, metric: str) -> Trend:
        """Give the history of a metric, one value for each epoch."""
        return Trend([row[metric] for row in self.history if metric in row])

    def stop(self, reason: str) -> None:
        """End the training after the update that is under way."""
        self.stop_reason = reason or "stopped"

    def scale_lr(self, factor: float, *, least: float = 0.0) -> None:
        """Multiply the learning rate by a factor from here on, also under a schedule."""
        scale_rates(self.optimizer, self.train_step.schedule, factor, least)

    def save(self, *, wait: bool = True, reason: str = "") -> None:
        """Save a bundle now; between two updates only. `reason` is told with it."""
        if self._directory is None:
            raise TrainError("there is nowhere to save to. Give the trainer a checkpoint_dir.")
        # Metrics belong to the weights that were measured: a bundle from within an epoch has none.
        measured = self._place.measured_at == self.updates
        metrics = {k: v for row in self.history[-1:] for k, v in row.items() if measured and k != "epoch"}
        started = time.perf_counter()
        path = self._directory.save(self.updates, parts_of(self), metrics, wait=wait)
        self._saved_at = (self.updates, self.epochs)
        self._tell("save", path=path, reason=reason, duration_s=time.perf_counter() - started)
        self._hooks.call("on_save", trainer=self, step=self.updates, metrics=metrics)

    def _after_update(self) -> None:
        self._updates = self.train_step.updates
        if self.average is not None:
            self.average.update()
        if self._finite is not None and (skipped := self._finite.skipped_since()):
            meet_not_finite(self, skipped)

    def _evaluate(self, loader: Loader, *, between: Callable[[], None]) -> dict[str, float]:
        weights = nullcontext() if self.average is None else self.average.applied()
        with untouched_randomness(self.device), weights:
            return evaluate(
                self.model,
                loader,
                self.step_fn,
                device=self.device,
                precision=self.precision,
                metrics=self._metrics,
                outputs=self._outputs,
                between=between,
            )

    def _save_the_end(self) -> None:
        """Save the last state, unless nothing is to be saved or it was."""
        saves = self._settings.save_every or self._save_every_steps
        if self._directory is None or not saves or not self.train_step.is_between_updates:
            return
        if self._saved_at != (self.updates, self.epochs):
            self.save(wait=False, reason="the end")

    def _save_and_leave(self) -> NoReturn:
        """Save what there is, now, and end the program."""
        if self._directory is not None:
            self.save(reason=self._notice.name)
        self._notice.leave()

    def _told(self, epochs: int) -> AbstractContextManager[Telling]:
        return telling(
            self._monitor,
            self.run_dir,
            things=() if self._is_shown else (self.model, self.train_step),
            total_epochs=epochs,
            config=described(self, epochs),
            log_every=self._settings.log_every,
            why_stopped=lambda: self.stop_reason,
        )

    def _run_directory(self, path: str | PathLike[str] | None, keep: Policy | None) -> RunDirectory | None:
        if path is None:
            return None
        return RunDirectory(
            Path(path),
            keep=keep,
            when_disk_fails=self._settings.when_disk_fails,
            on_error=self._tell_disk_error,
        )

    def _tell_disk_error(self, error: WriteError) -> None:
        outlook = "The run ends with what was saved before." if self._notice else "Training goes on."
        self._tell("alert", message=f"{error} {outlook}", level="error")

    def _tell(self, kind: str, **data: Any) -> None:
        if self._telling is not None:
            self._telling.event(kind, **data)
        elif kind == "alert" and data["level"] == "error":
            log.error("%s", data["message"])

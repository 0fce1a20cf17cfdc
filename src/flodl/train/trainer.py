"""`Trainer`: from data to a trained model, resumable at every update."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.checkpoint import Policy
from flodl.core import NotFiniteError, TrainError, WriteError
from flodl.data import Loader
from flodl.engine import TrainStep, calm_collector
from flodl.engine.hygiene import Collector
from flodl.engine.settings import Precision, Tail, TierChoice
from flodl.monitor import Monitor
from flodl.observe import Trend
from flodl.optim import Schedule

from .average import AveragedWeights
from .evaluation import as_arguments, evaluate
from .finite import FiniteWatch
from .hooks import Hooks
from .keeping import RunDirectory, read_parts
from .leaving import Notice
from .randomness import untouched_randomness
from .result import FitResult
from .settings import DiskPolicy, NanPolicy, TrainerSettings
from .setup import chosen_device, made_optimizer, num_batches
from .state import load_parts, parts_of
from .telling import Telling

MAX_ROLLBACKS = 3
COLLECT_EARLY_EVERY = 1024


class _Interrupted(Exception):
    """Evaluation was left because somebody asked the run to stop."""


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
        outputs: Callable[..., tuple[Any, Any]] = lambda model, x, y: (model(x), y),
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
        self.average = None if ema is None else AveragedWeights(self.model, decay=ema)
        self._metrics, self._outputs = dict(metrics or {}), outputs
        self._hooks = Hooks(hooks)
        self._monitor = monitor
        self._directory = self._run_directory(checkpoint_dir, keep)
        self._telling: Telling | None = None
        self._loader: Loader | None = None
        self._loader_of: tuple[Any, Any] = (None, None)
        self._notice = Notice()
        self._finite = FiniteWatch(self.train_step.num_skipped) if nan != "skip" else None
        self._rollbacks = 0
        self._stop_reason = ""
        self._open_row: dict[str, Any] | None = None
        self._epoch_began_s = 0.0
        self._epoch_step = self._num_batches = 0
        self._collector: Collector | None = None
        self._every_step = self._hooks.wants("on_step_end")

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
        another run. SIGTERM and SIGINT save the run and end the program with exit code 75.
        """
        if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1:
            raise TrainError(f"epochs={epochs!r}. Give a whole number from 1 up.")
        loader = self.loader(train_data, batch_size)
        with self._running(epochs):
            self._resume(loader, resume)
            if self._open_row is not None:
                self._finish_epoch(eval_data)
            while self.epochs < epochs and not self._stop_reason:
                for batch in self.epoch(loader, eval_data=eval_data):
                    self.step(batch)
            result = self._result()
            self._hooks.call("on_end", trainer=self, result=result)
        return result

    def epoch(self, data: Any, batch_size: int | None = None, *, eval_data: Any = None) -> Iterator[Any]:
        """Give the batches of the current epoch, each to be handed to `step`; what ends an epoch follows.

        A loop that is left early goes on with the next batch when `epoch` is called again.
        """
        loader = self.loader(data, batch_size)
        self._begin_epoch(loader)
        for batch in loader:
            yield batch
            if self._notice and self.train_step.is_between_updates:
                self._save_and_leave(loader)
            if self._stop_reason:
                return
        self.train_step.flush()
        self._close_training(loader)
        self._finish_epoch(eval_data)

    def step(self, batch: Any) -> Tensor:
        """Train on one batch, and give its loss."""
        loss = self.train_step(*batch) if type(batch) is tuple else self.train_step(*as_arguments(batch))
        self._epoch_step += 1
        if self.train_step.is_between_updates:
            self._after_update()
        if self._telling is not None:
            self._telling.progress(self.epochs, self._epoch_step, self._num_batches or None)
            every = self._settings.log_every
            if every is not None and self._epoch_step % every == 0:
                self._telling.step(self.updates, self.epochs, loss)
        if self._every_step:
            place = {"epoch": self.epochs, "step": self.updates}
            self._hooks.call("on_step_end", trainer=self, batch=batch, loss=loss, **place)
        if self._collector is not None and self._epoch_step % COLLECT_EARLY_EVERY == 0:
            self._collector.collect_if_growing()
        return loss

    def evaluate(self, data: Any, batch_size: int | None = None) -> dict[str, float]:
        """Give loss, named values and metrics over a data set, each sample counted once.

        The averaged weights are used where there are any. Random numbers of the training stay untouched.
        """
        loader = self._evaluation_loader(data, batch_size)
        weights = nullcontext() if self.average is None else self.average.in_place_of(self.model)
        with untouched_randomness(self.device), weights:
            return evaluate(
                self.model,
                loader,
                self.step_fn,
                precision=self.precision,
                metrics=self._metrics,
                outputs=self._outputs,
                between=self._leave_evaluation_if_asked,
            )

    def loader(self, data: Any, batch_size: int | None = None) -> Loader:
        """Give the loader that feeds the training: the one that is given, or one over the data."""
        if isinstance(data, Loader):
            self._loader = data
        elif self._loader is None or self._loader_of[0] is not data or self._loader_of[1] != batch_size:
            self._loader = Loader(data, batch_size, seed=self._settings.seed, device=self.device)
            self._loader.set_epoch(self.epochs)
            self._loader_of = (data, batch_size)
        return self._loader

    def trend(self, metric: str) -> Trend:
        """Give the history of a metric, one value for each epoch."""
        return Trend([row[metric] for row in self.history if metric in row])

    def stop(self, reason: str) -> None:
        """End the training after the step that runs now."""
        self._stop_reason = reason or "stopped"

    def scale_lr(self, factor: float, *, least: float = 0.0) -> None:
        """Multiply the learning rate by a factor from here on, also under a schedule."""
        bridge = self.train_step.schedule
        if bridge is not None:
            bridge.scale(bridge.lr_scale * factor)
            return
        for group in self.optimizer.param_groups:
            rate = max(float(group["lr"]) * factor, least)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def save(self, *, wait: bool = True) -> None:
        """Save a bundle now; between two updates only."""
        if self._directory is None:
            raise TrainError("there is nowhere to save to. Give the trainer a checkpoint_dir.")
        metrics = {name: value for row in self.history[-1:] for name, value in row.items() if name != "epoch"}
        started = time.perf_counter()
        self._directory.save(self.updates, parts_of(self), metrics, wait=wait)
        self._tell("save", step=self.updates, duration_s=time.perf_counter() - started)
        self._hooks.call("on_save", trainer=self, step=self.updates, metrics=metrics)

    @contextmanager
    def _running(self, epochs: int) -> Iterator[None]:
        """Set up what lasts as long as a run, and end it well whatever happens."""
        self._stop_reason = ""
        if self._directory is not None:
            self._directory.write_config(self._described(epochs))
        self._telling = Telling(
            self._monitor, self.run_dir, total_epochs=epochs, config=self._described(epochs)
        )
        with ExitStack() as stack:
            stack.callback(self.train_step.close)
            if self._directory is not None:
                stack.enter_context(self._notice.listening())
                stack.callback(self._directory.close)
            self._collector = stack.enter_context(calm_collector())
            self._telling.watch(self.model, self.train_step)
            self._hooks.call("on_start", trainer=self)
            try:
                yield
            except BaseException as error:
                status = "stopped" if isinstance(error, SystemExit | KeyboardInterrupt) else "failed"
                self._telling.finish(status, f"{type(error).__name__}: {error}")
                raise
            finally:
                self._collector = None
        self._telling.finish("stopped" if self._stop_reason else "finished", self._stop_reason or None)
        self._telling = None

    def _begin_epoch(self, loader: Loader) -> None:
        self._num_batches = num_batches(loader)
        if self._notice:
            self._save_and_leave(loader)
        if loader.position == 0:
            self._epoch_step = 0
            self._hooks.call("on_epoch_start", trainer=self, epoch=self.epochs)
        self._epoch_began_s = time.perf_counter()

    def _close_training(self, loader: Loader) -> None:
        """Take the means of the epoch's training."""
        if self._finite is not None and (skipped := self._finite.settle()):
            self._meet_not_finite(skipped)
        means = {name: value.item() for name, value in self.train_step.means().items()}
        self.train_step.reset_means()
        rate = float(self.optimizer.param_groups[0]["lr"])
        self._open_row = {"epoch": self.epochs + 1, **means, "lr": rate}

    def _finish_epoch(self, eval_data: Any) -> None:
        """Evaluate, note, tell and save; begun again after a resume if it was interrupted."""
        row, epoch = self._open_row, self.epochs
        assert row is not None
        if eval_data is not None:
            try:
                found = self.evaluate(eval_data)
            except _Interrupted:
                self._save_and_leave(self._loader)
            row.update({f"eval_{name}": value for name, value in found.items()})
            self._hooks.call("on_evaluate_end", trainer=self, epoch=epoch, metrics=found)
        self._open_row = None
        self.history.append(row)
        metrics = {name: value for name, value in row.items() if name != "epoch"}
        self._record(metrics)
        self._hooks.call("on_epoch_end", trainer=self, epoch=epoch, metrics=metrics)
        if self._telling is not None:
            self._telling.epoch(epoch, metrics, time.perf_counter() - self._epoch_began_s)
        every = self._settings.save_every
        if self._directory is not None and every is not None and self.epochs % every == 0:
            self.save(wait=False)
        if self._collector is not None:
            self._collector.collect()

    def _record(self, metrics: Mapping[str, float]) -> None:
        """Let a graph keep the metrics too, so that its trends and exports have them."""
        if hasattr(self.model, "record") and hasattr(self.model, "end_epoch"):
            for name, value in metrics.items():
                self.model.record(name, value)  # type: ignore[operator]
            self.model.end_epoch()  # type: ignore[operator]

    def _after_update(self) -> None:
        if self.average is not None:
            self.average.update()
        if self._finite is not None and (skipped := self._finite.skipped_since()):
            self._meet_not_finite(skipped)
        every = self._settings.save_every_steps
        if every is not None and self._directory is not None and self.updates % every == 0:
            self.save(wait=False)

    def _meet_not_finite(self, skipped: int) -> None:
        """Stop, or go back to the last bundle, because losses or gradients were not finite."""
        what = (
            f"the loss or the gradients were not finite in {skipped} of the updates up to {self.updates}. "
            "Those updates were skipped, so the weights are good."
        )
        bundle = None
        if (
            self._settings.nan == "rollback"
            and self._directory is not None
            and self._rollbacks < MAX_ROLLBACKS
        ):
            self._directory.close()
            bundle = self._directory.find("auto")
        if bundle is None:
            raise NotFiniteError(
                f"{what} Lower the learning rate or clip the gradients; nan='skip' leaves such batches out."
            )
        self._rollbacks += 1
        load_parts(self, read_parts(bundle), loader=None)
        self._tell("alert", message=f"{what} Went back to step {bundle.step}.", level="warning")

    def _leave_evaluation_if_asked(self) -> None:
        if self._notice and self._telling is not None:
            raise _Interrupted

    def _save_and_leave(self, loader: Loader | None) -> None:
        """Save what there is, now, and end the program."""
        if self._directory is not None:
            self.save(wait=True)
        self._notice.leave()

    def _resume(self, loader: Loader, resume: str | PathLike[str] | bool) -> None:
        if self._directory is None:
            if resume in ("must", True):
                raise TrainError(f"resume={resume!r} needs a checkpoint_dir to look into.")
            return
        if self.updates:
            return
        bundle = self._directory.find(resume if isinstance(resume, bool) else str(resume))
        if bundle is None:
            return
        load_parts(self, read_parts(bundle), loader=loader)
        self._tell("alert", message=f"resumed from step {bundle.step}, epoch {self.epochs}", level="info")

    def _result(self) -> FitResult:
        return FitResult(
            history=[dict(row) for row in self.history],
            steps=self.updates,
            status="stopped" if self._stop_reason else "finished",
            reason=self._stop_reason,
            run_dir=self.run_dir,
            report=self.train_step.report(),
        )

    def _described(self, epochs: int) -> dict[str, Any]:
        """Give the settings of the run as plain data."""
        step = asdict(self.train_step.settings)
        return {
            "epochs": epochs,
            "device": str(self.device),
            "optimizer": type(self.optimizer).__name__,
            **step,
            **asdict(self._settings),
        }

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
        self._tell("alert", message=f"{error} Training goes on.", level="error")

    def _tell(self, kind: str, **data: Any) -> None:
        if self._telling is not None:
            self._telling.event(kind, **data)

    def _evaluation_loader(self, data: Any, batch_size: int | None) -> Iterable[Any]:
        if isinstance(data, Loader):
            data.set_epoch(0)
            return data
        if batch_size is None:
            batch_size = self._loader.batch_size if self._loader is not None else None
        if batch_size is None:
            raise TrainError("evaluate needs a batch_size, or a Loader that has one.")
        return Loader(data, batch_size, shuffle=False, device=self.device)

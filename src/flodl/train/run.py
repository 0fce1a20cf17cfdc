"""The run of a trainer: its parts, where it stands, what lasts as long as it does, what follows a batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from os import PathLike
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.checkpoint import Policy
from flodl.core import TrainError, WriteError, log
from flodl.core.integers import is_integer
from flodl.engine import TrainStep, calm_collector
from flodl.engine.device.gc_and_sync import Collector
from flodl.monitor import Monitor
from flodl.optim import Schedule

from .batches.cursor import Handing
from .batches.loaders import Feeding
from .batches.position import Place
from .build import described
from .callbacks.dispatch import Hooks
from .evaluation.ema import AveragedWeights
from .evaluation.evaluator import Evaluator
from .evaluation.modes import modes_kept
from .faults.nonfinite import OVERFLOWS_IN_A_ROW, FiniteWatch
from .faults.rollback import meet_not_finite
from .faults.signals import Notice
from .learning_rate import follows_loss
from .reporting import Telling, telling
from .result import FitResult
from .saving.bundle import expected_bytes, parts_of
from .saving.directory import RunDirectory
from .settings import TrainerSettings

COLLECT_EARLY_EVERY = 1024


class Run:
    """What the files of this package share; users see the `Trainer` around it."""

    def __init__(
        self,
        train_step: TrainStep,
        evaluator: Evaluator,
        *,
        optimizer: Optimizer,
        schedule: Schedule | Callable[[int], float] | None,
        settings: TrainerSettings,
        hooks: Hooks,
        monitor: Monitor | bool | None,
        checkpoint_dir: str | PathLike[str] | None,
        keep: Policy | None,
    ) -> None:
        self.train_step, self.evaluator, self.optimizer = train_step, evaluator, optimizer
        self.schedule, self.settings, self.hooks, self.monitor = schedule, settings, hooks, monitor
        self.directory: RunDirectory | None = None
        if checkpoint_dir is not None:
            self.directory = RunDirectory(
                checkpoint_dir,
                keep=keep,
                when_disk_fails=settings.when_disk_fails,
                tell=self.tell,
                on_error=self._tell_disk_error,
            )
        self.follows_loss = follows_loss(train_step.schedule)
        self.handing = Handing(self)
        self.feeding = Feeding(self.device, settings.seed, self.handing)
        self.watch: FiniteWatch | None = None
        if settings.nan != "skip":
            in_a_row = OVERFLOWS_IN_A_ROW if evaluator.precision == "fp16" else 1
            self.watch = FiniteWatch(train_step.num_skipped, in_a_row=in_a_row)
        self.notice = Notice()
        self.history: list[dict[str, Any]] = []
        self.place = Place()
        self.stop_reason = ""
        self.num_empty_epochs = 0
        # Whether no epoch was begun and no bundle loaded; what was frozen, and what the optimizer was given,
        # before either.
        self.is_fresh = True
        self.modes_at_start: dict[str, list[str]] | None = None
        self.optimizer_at_start: list[dict[str, Any]] | None = None
        self.epochs_wanted: int | None = None
        self.num_batches: int | None = None
        self.epoch_began_s = 0.0
        self.num_rollbacks = 0
        self.telling: Telling | None = None
        self.collector: Collector | None = None
        self._every_step = hooks.wants("on_step_end")
        self._save_every_steps = 0 if self.directory is None else settings.save_every_steps or 0
        self._updates = 0
        self._saved_at: tuple[int, int] | None = None
        # Whether to wait for, and the reason of, a save that was asked for within a window of accumulation.
        self._put_off: tuple[bool, str] | None = None
        # A monitor of the user's sees several runs, and is shown the model once.
        self._is_shown = False

    @property
    def model(self) -> nn.Module:
        """What is trained."""
        return self.evaluator.model

    @property
    def device(self) -> torch.device:
        """Where it is trained."""
        return self.evaluator.device

    @property
    def average(self) -> AveragedWeights | None:
        """The averaged weights, where they were asked for."""
        return self.evaluator.average

    @property
    def epochs(self) -> int:
        """How many epochs are done."""
        return len(self.history)

    @property
    def updates(self) -> int:
        """How many optimizer updates are done."""
        return self.train_step.updates

    @property
    def why_stopped(self) -> str:
        """Why the run ended before its time, or nothing: who stops it after the last epoch ends nothing."""
        return "" if self.epochs == self.epochs_wanted else self.stop_reason

    @contextmanager
    def going(self, epochs: int) -> Iterator[None]:
        """Set up what lasts as long as a run (folder, monitor, signals, collector), and end it well."""
        if not is_integer(epochs, at_least=1):
            raise TrainError(f"epochs={epochs!r}. Give a whole number from 1 up.")
        if self.telling is not None:
            raise TrainError("this trainer is running already. Make another one for a run inside a run.")
        self.stop_reason, self.num_empty_epochs, self.epoch_began_s = "", 0, time.perf_counter()
        self.epochs_wanted = epochs
        with ExitStack() as stack:
            if self.directory is not None:
                stack.callback(self.directory.release)
                self.directory.take(described(self, epochs))
                stack.enter_context(self.notice.listening())
            self.telling = stack.enter_context(self._told(epochs))
            stack.callback(setattr, self, "telling", None)
            self._is_shown = isinstance(self.monitor, Monitor)
            stack.enter_context(modes_kept(self.model))
            stack.callback(self.train_step.close)
            if self.directory is not None:
                stack.callback(self.directory.close)
                self.directory.check_room(expected_bytes(self), num_saves=self._num_saves(epochs))
            self.collector = stack.enter_context(calm_collector())
            stack.callback(setattr, self, "collector", None)
            if self.notice:
                self.save_and_leave()
            self.hooks.call("on_start")
            if self.directory is not None:
                self.hooks.check_states()
            yield
            self._save_the_end()
            if self.notice:
                self.save_and_leave()
            self.hooks.call("on_end", result=self.result())

    def after_batch(self, batch: Any, loss: Tensor) -> None:
        """Count, look after the update where there was one, tell, and save where it is time."""
        updated = self.count_batch()
        if self.telling is not None:
            self.telling.step(self.epochs, self.place.epoch_step, self.num_batches, self._updates, loss)
        if self._every_step:
            self.hooks.call("on_step_end", batch=batch, loss=loss, epoch=self.epochs, step=self._updates)
        if updated and self._put_off is not None:
            self.save_put_off()
        elif updated and self._save_every_steps and self._updates % self._save_every_steps == 0:
            self.save(wait=False, reason=f"update {self._updates}")
        if self.directory is not None and self.directory.has_news:
            self.tell_hooks_of_saves()
        if self.collector is not None and self.place.epoch_step % COLLECT_EARLY_EVERY == 0:
            self.collector.collect_if_growing()

    def count_batch(self) -> bool:
        """Count a batch that was trained on; say whether there was an update with it."""
        self.place.epoch_step += 1
        return self.meet_update()

    def meet_update(self) -> bool:
        """After an update, average the weights and see whether it was skipped; say whether there was one."""
        if self.train_step.updates == self._updates:
            return False
        self.count_updates()
        if self.average is not None:
            self.average.update(self.train_step.skipped)
        if self.watch is not None and (skipped := self.watch.skipped_since(self._updates)):
            meet_not_finite(self, skipped)
        return True

    def settle(self) -> None:
        """Meet every skipped update, also one that the device has not told of yet."""
        if self.watch is not None and (skipped := self.watch.settle(self.updates)):
            meet_not_finite(self, skipped)

    def count_updates(self) -> None:
        """Take the updates of the step for known, as after a resume."""
        self._updates = self.train_step.updates

    def save_soon(self, *, wait: bool, reason: str) -> None:
        """Save a bundle now, or at the end of the window of accumulation that is under way."""
        if self.directory is None or self.train_step.is_between_updates:
            self.save(wait=wait, reason=reason)
        else:
            self._put_off = wait, reason

    def save_put_off(self) -> None:
        """Save what was asked for within a window that has ended since."""
        if self._put_off is not None:
            wait, reason = self._put_off
            self.save(wait=wait, reason=reason)

    def save(self, *, wait: bool, reason: str) -> bool:
        """Save a bundle, between two updates only; say whether it was waited for and is on the disk."""
        if self.directory is None:
            raise TrainError("there is nowhere to save to. Give the trainer a checkpoint_dir.")
        self._put_off = None
        # A run that goes on from this bundle takes every update in it for met.
        self.settle()
        # Metrics belong to the weights that were measured: a bundle from within an epoch has none.
        measured = self.place.measured_at == self.updates
        metrics = {k: v for row in self.history[-1:] for k, v in row.items() if measured and k != "epoch"}
        self.directory.wait()
        if not self.notice:
            # Before this save can replace the one of before, or retention delete it.
            self.tell_hooks_of_saves()
        is_saved = self.directory.save(self.updates, parts_of(self), metrics, reason=reason, wait=wait)
        self.note_saved()
        if wait:
            self.tell_hooks_of_saves()
        return is_saved

    def note_saved(self) -> None:
        """Remember that what the run has come to is among its bundles."""
        self._saved_at = (self.updates, self.epochs)

    def tell_hooks_of_saves(self) -> None:
        """Let hooks know of the bundles that have reached the disk, from the thread of the training.

        One that is gone already, replaced by a later save or deleted, is no news. A save begins when hooks
        know of all before it, so none goes while a hook looks at it.
        """
        for saved in () if self.directory is None else self.directory.news():
            if saved.path.is_dir():
                self.hooks.call("on_save", step=saved.step, metrics=dict(saved.metrics), path=saved.path)

    def save_and_leave(self) -> NoReturn:
        """Save what there is, now, and end the program; a window of accumulation under way is given up."""
        if self.is_fresh and not self.updates:
            self.notice.leave(is_begun=False)
        lost = ""
        if self.directory is not None:
            self.handing.give_up_window()
            if not self.save(wait=True, reason=self.notice.name):
                bundle, _ = self.directory.find()
                left = "There is no bundle to go on from."
                if bundle is not None:
                    left = f"Started again, it goes on from its newest bundle, of step {bundle.step}."
                lost = f"{self.notice.name}; the run could not be saved at step {self.updates}. {left}"
        self.notice.leave(lost)

    def result(self) -> FitResult:
        """Give what the run came to so far."""
        return FitResult(
            history=[dict(row) for row in self.history],
            steps=self.updates,
            status="stopped" if self.why_stopped else "finished",
            reason=self.why_stopped,
            run_dir=None if self.directory is None else self.directory.path,
            report=self.train_step.report(),
        )

    def tell(self, kind: str, **data: Any) -> None:
        """Tell whoever listens; where nobody does, what people should see is a line in the log."""
        telling = self.telling  # the writer's thread tells, too
        if telling is not None:
            telling.event(kind, **data)
        elif kind == "alert" and data["level"] != "info":
            (log.error if data["level"] == "error" else log.warn)("%s", data["message"])

    def _save_the_end(self) -> None:
        """Save the last state, unless nothing is to be saved or it was; return when it is on the disk."""
        if self.directory is None:
            return
        saves = self.settings.save_every or self._save_every_steps
        if saves and self.train_step.is_between_updates and self._saved_at != (self.updates, self.epochs):
            self.save(wait=False, reason="the end")
        self.directory.wait()
        self.tell_hooks_of_saves()

    def _num_saves(self, epochs: int) -> int | None:
        """Give how many saves a run makes that nobody disturbs; None where nobody can say."""
        if self._save_every_steps:
            return None
        return 1 if self.settings.save_every is None else -(-epochs // self.settings.save_every)

    def _told(self, epochs: int) -> AbstractContextManager[Telling]:
        return telling(
            self.monitor,
            None if self.directory is None else self.directory.for_journal,
            things=() if self._is_shown else (self.model, self.train_step),
            total_epochs=epochs,
            config=described(self, epochs),
            log_every=self.settings.log_every,
            why_stopped=lambda: self.why_stopped,
        )

    def _tell_disk_error(self, error: WriteError) -> None:
        outlook = "The run ends with what was saved before." if self.notice else "Training goes on."
        self.tell("alert", message=f"{error} {outlook}", level="error")

"""The state of a run: what is trained, with which settings, and how far it got. Data only."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from flodl.core.formats import counted
from flodl.data import Loader
from flodl.engine import BatchSums, TrainStep
from flodl.optim import Schedule

from .batches.position import Position
from .evaluation.ema import AveragedWeights
from .faults.nonfinite import SkippedUpdates
from .fit_calls import FitCalls
from .parameters import KnownParameters
from .settings import TrainerSettings


@dataclass
class Start:
    """The state before the first epoch began or a bundle was loaded: frozen and evaluating modules, the
    settings of the optimizer, and the size of an epoch."""

    is_fresh: bool = True
    modes: dict[str, list[str]] | None = None
    optimizer: list[dict[str, Any]] | None = None
    # The settings of the optimizer in this program in whose place those of the saved run apply, by name.
    ignored: dict[str, list[Any]] = field(default_factory=dict)
    # The same for the settings of hooks and the seed.
    ignored_elsewhere: dict[str, list[Any]] = field(default_factory=dict)
    # The settings of the user that apply, if some of this program are ignored.
    used_config: dict[str, Any] | None = None
    # The number of batches that epochs are limited to.
    limit: int | None = None
    # The record of this start, that of an earlier one in the same folder, and the bundle of another run.
    record: Mapping[str, Any] | None = None
    earlier_record: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    # How many epochs that other run had, and which rows of the history are restored from its own folder.
    epochs_elsewhere: int = 0
    restored_epochs: range = range(0)
    # The number of epochs before the evaluation data last changed.
    evaluated_since: int = 0
    # The buffers that the program of that other run set.
    buffers: Any = None
    # The step of the save that restore_best has loaded.
    restored_step: int | None = None


@dataclass
class Session:
    """The objects of a run and its progress."""

    model: nn.Module
    optimizer: Optimizer
    schedule: Schedule | Callable[[int], float] | None
    train_step: TrainStep
    average: AveragedWeights | None
    device: torch.device
    settings: TrainerSettings
    # None where non-finite updates are skipped silently.
    skipped: SkippedUpdates | None = None
    # The loader that provides the training batches, once there is one.
    loader: Loader | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    position: Position = field(default_factory=Position)
    start: Start = field(default_factory=Start)
    fit_calls: FitCalls = field(default_factory=FitCalls)
    # Since when the time counts for the current epoch; None while it does not count.
    epoch_start_s: float | None = None
    # The updates that averaging and the check for non-finite values have handled.
    updates_seen: int = 0
    # The sums of the means before steps that were made outside of an epoch; None without such a step.
    sums_outside: BatchSums | None = None
    num_rollbacks: int = 0
    stop_reason: str = ""
    parameters: KnownParameters = field(init=False)
    # The parameter groups of the optimizer as it was built.
    num_groups_built: int = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = KnownParameters(self.model)
        self.num_groups_built = len(self.optimizer.param_groups)

    def check_parameters(self) -> None:
        """Raise if the model got parameters that nothing would train."""
        self.parameters.check(self.model, self.optimizer, averaged=self.average is not None)

    @property
    def epochs(self) -> int:
        """The number of epochs done."""
        return len(self.history)

    @property
    def is_inside_epoch(self) -> bool:
        """Whether an epoch has begun and is not in the history yet."""
        position = self.position
        return position.open_row is not None or (position.measured_at or 0) != self.updates

    @property
    def epochs_in_words(self) -> str:
        """How many epochs are done, or which one has begun, counted from 1 as in the history."""
        if self.is_inside_epoch:
            return f"in epoch {self.epochs + 1}"
        return f"{counted(self.epochs, 'epoch')} done"

    @property
    def epoch_s(self) -> float:
        """The seconds spent in the current epoch, with those of earlier starts."""
        start_s = self.epoch_start_s
        return self.position.spent_s + (0.0 if start_s is None else time.perf_counter() - start_s)

    def note_step_outside(self) -> None:
        """Note that a step outside of an epoch follows: it does not belong to the row of one."""
        if self.sums_outside is None:
            self.sums_outside = BatchSums(self.train_step)

    def leave_out_steps_outside(self) -> None:
        """Remove what steps outside of an epoch have added to the means."""
        sums, self.sums_outside = self.sums_outside, None
        if sums is not None:
            sums.note()
            sums.remove([True])

    def pause_epoch(self) -> None:
        """Keep the seconds spent in an epoch that is left; they count again when it continues."""
        if self.is_inside_epoch:
            self.position.spent_s = self.epoch_s
        self.epoch_start_s = None

    @property
    def updates(self) -> int:
        """The number of optimizer updates done."""
        return self.train_step.updates

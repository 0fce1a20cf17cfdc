"""How far a run has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any
from weakref import ReferenceType

from torch import Tensor

from flodl.data import Loader

from .checks.augmentations import TrainingInputs
from .checks.trained_before import EarlierRun
from .ranks.report import RanksReport
from .record.recorder import UNKNOWN
from .window_means import WindowMeans


class Stage(IntEnum):
    """How far the start of a run has come."""

    CLOSED = 0
    OPEN = 1
    # `on_start` was called: nothing that was saved speaks against this start.
    STARTED = 2
    # The start is recorded in the folder and the journal, and training begins.
    BEGUN = 3


@dataclass
class Progress:
    """What is known about the run that is open; each run starts with a new one."""

    total_epochs: int | None = None
    # How many batches an epoch has at most.
    limit: int | None = None
    # Whether the dry pass was done.
    is_checked: bool = False
    # Whether this call of `fit` had returned before the run was saved, so that it trains nothing.
    has_returned: bool = False
    # The batches of the current epoch, where known.
    num_batches: int | None = None
    # The batches of the epoch after the last step that was followed up on without an error.
    followed_step: int | None = None
    # The epochs asked for after a stop.
    num_empty_epochs: int = 0
    # The evaluation data of `fit`.
    eval_data: Any = UNKNOWN
    # Differences from the saved run that are not reported yet.
    differences: list[str] = field(default_factory=list)
    # What several devices did.
    ranks: RanksReport | None = None
    # The ranks on which a named value was NaN.
    nan_ranks: dict[str, set[int]] = field(default_factory=dict)
    # The sums of the loss and the named values when the rest of an epoch began.
    sums_before: list[Any] = field(default_factory=list)
    # The epochs of the graph when the last one ended.
    graph_epochs: int | None = None
    # The last batch and its loss, until `on_step_end` receives them.
    last_batch: tuple[Any, Tensor] | None = None
    # The means of the current accumulation window, for the record of its update.
    window: WindowMeans = field(default_factory=WindowMeans)
    # A loader over an iterator, whose epoch was ended by a limit.
    cut_loader: Loader | None = None
    # Integers among the named values that were 0 in the first batch, and may be counts.
    undecided: tuple[str, ...] = ()
    # The run of another trainer that left the model as this one finds it.
    earlier: EarlierRun | None = None
    # What the inputs of the training look like, and the last evaluation loader that was compared with them.
    inputs: TrainingInputs | None = None
    compared: ReferenceType[Loader] | None = None
    # The results of the last evaluation for each class, and matrices.
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)

"""The training step as one program: eager first, then captured, with the same numbers."""

from .batch.keywords import by_position, taking_a_dict
from .batch.samples import ambiguous_samples, leading_lengths, num_samples, pieces_of, shapes_in
from .batch.time_first import samples_as_time, time_first_calls
from .batch_sums import BatchSums
from .capture.function import Captured, capture
from .device.gc_and_sync import Collector, calm_collector, no_waiting
from .device.memory import MemoryUse, forget_peaks, memory_use
from .device.torch_flags import current_flags, set_flags
from .errors import NoGradient, NotRestorable
from .mistakes.advice.explain import explained
from .mistakes.batch_text import batch_text
from .mistakes.empty_batch import empty_batch
from .mistakes.losses.broadcasts import watch_broadcasts
from .modes import enter_training, has_chosen_modes, switch_modes
from .non_finite import NonFinite, find_non_finite, report_elsewhere
from .other_steps import parts_of, trained_by_others
from .program.outcome import outcome_of
from .program.precision import computing_in
from .rehearsal import (
    carries_attributes,
    carries_state,
    depends_on_last_step,
    rehearse,
    sandbox,
    starts_elsewhere,
    trial_copy,
    watch_outside,
)
from .report import StepReport
from .settings import Precision, Tail, TierChoice
from .state.outside_objects import OutsideObjects, OutsideVariable
from .state.plain_tensors import PlainTensor, plain_tensors_of
from .state.written_attributes import WatchedAttributes, WrittenAttribute
from .step import TrainStep
from .without_batch import update_without_batch

__all__ = [
    "BatchSums",
    "Captured",
    "Collector",
    "MemoryUse",
    "NoGradient",
    "NonFinite",
    "NotRestorable",
    "OutsideObjects",
    "OutsideVariable",
    "PlainTensor",
    "Precision",
    "StepReport",
    "Tail",
    "TierChoice",
    "TrainStep",
    "WatchedAttributes",
    "WrittenAttribute",
    "ambiguous_samples",
    "batch_text",
    "by_position",
    "calm_collector",
    "capture",
    "carries_attributes",
    "carries_state",
    "computing_in",
    "current_flags",
    "depends_on_last_step",
    "empty_batch",
    "enter_training",
    "explained",
    "find_non_finite",
    "forget_peaks",
    "has_chosen_modes",
    "leading_lengths",
    "memory_use",
    "no_waiting",
    "num_samples",
    "outcome_of",
    "parts_of",
    "pieces_of",
    "plain_tensors_of",
    "rehearse",
    "report_elsewhere",
    "samples_as_time",
    "sandbox",
    "set_flags",
    "shapes_in",
    "starts_elsewhere",
    "switch_modes",
    "taking_a_dict",
    "time_first_calls",
    "trained_by_others",
    "trial_copy",
    "update_without_batch",
    "watch_broadcasts",
    "watch_outside",
]

"""Turn the calls of a training loop into events: epochs, steps, watched models, background sources."""

from .background import start_sources
from .complete import complete_journal
from .epochs import EpochTracker, missing_epochs
from .graph_metrics import GraphMetrics
from .non_finite import NonFiniteAlert
from .rate_limit import RateLimit
from .run_end import end_status
from .run_start import (
    config_data,
    default_name,
    previous_epochs,
    previous_step,
    run_folder,
    run_start_data,
)
from .steps import StepSampler, detached
from .views import ViewDispatcher
from .watched import Watched, step_note
from .watched_settings import WatchedSettings, earlier_settings

__all__ = [
    "EpochTracker",
    "GraphMetrics",
    "NonFiniteAlert",
    "RateLimit",
    "StepSampler",
    "ViewDispatcher",
    "Watched",
    "WatchedSettings",
    "complete_journal",
    "config_data",
    "default_name",
    "detached",
    "earlier_settings",
    "end_status",
    "missing_epochs",
    "previous_epochs",
    "previous_step",
    "run_folder",
    "run_start_data",
    "start_sources",
    "step_note",
]

"""What every other package stands on; imports neither torch nor anything of flodl."""

from .clock import Progress
from .errors import (
    BuildError,
    CheckpointError,
    FlodlError,
    GraphError,
    InputError,
    LoopError,
    MetricError,
    PathError,
    PictureError,
    RefError,
    RouteError,
    ScheduleError,
    SetupError,
    ShapeError,
    StateError,
    StepError,
    TagError,
)
from .log import Verbosity, set_verbosity, verbosity
from .rng import Rng, manual_seed

__all__ = [
    "BuildError",
    "CheckpointError",
    "FlodlError",
    "GraphError",
    "InputError",
    "LoopError",
    "MetricError",
    "PathError",
    "PictureError",
    "Progress",
    "RefError",
    "Rng",
    "RouteError",
    "ScheduleError",
    "SetupError",
    "ShapeError",
    "StateError",
    "StepError",
    "TagError",
    "Verbosity",
    "manual_seed",
    "set_verbosity",
    "verbosity",
]

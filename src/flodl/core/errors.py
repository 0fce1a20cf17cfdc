"""Every error that flodl raises, as one tree.

    FlodlError                    the root: catch this to catch them all
    ├── GraphError                a model is built or called wrongly
    │   ├── BuildError            a builder call does not fit the chain so far
    │   ├── TagError              a tag, group or label is not usable as a name
    │   ├── RefError              `using` binds something that cannot be bound
    │   ├── ShapeError            tensors do not fit together at a node
    │   ├── RouteError            a router or selector disagrees with its branches
    │   ├── LoopError             a loop's count or condition is wrong
    │   ├── InputError            a graph is called with the wrong inputs
    │   ├── StateError            carried state does not fit the call
    │   └── PathError             a dotted path leads nowhere
    ├── MetricError               a value cannot be recorded or exported
    ├── ScheduleError             a schedule or clipping argument is out of range
    ├── StepError                 a training step is set up or called wrongly
    ├── TrainError                a trainer is set up or used wrongly, or training cannot go on
    │   └── NotFiniteError        the loss or the gradients are no longer numbers
    ├── CheckpointError           a checkpoint cannot be written or does not fit
    │   ├── DamagedError          a file or bundle is not what was written
    │   └── WriteError            the disk is full, or the folder cannot be written
    ├── DataError                 a loader, sampler or source is used wrongly
    │   ├── CursorError           a saved position does not fit the loader
    │   ├── DataFileError         a data file is missing or not what it should be
    │   └── DownloadError         a data file cannot be fetched
    ├── PictureError              a picture cannot be drawn
    ├── MonitorError              a run cannot be watched, or its journal not be read or written
    ├── ArgsError                 a dataclass or a schema cannot become a command line
    └── SetupError                the environment or the command line is not usable
        └── ManifestError         an fdl.yml, or what it describes, cannot be used

A message says what happened (with the value), what was expected and what to do. The dotted
path of the node grows while the error climbs out of nested graphs:

>>> error = RouteError("the router gives 3 weights for 2 experts. Give the router 2 outputs.", path="moe")
>>> print(error.under("encoder"))
at 'encoder.moe': the router gives 3 weights for 2 experts. Give the router 2 outputs.
"""

from __future__ import annotations

from typing import Self


class FlodlError(Exception):
    """The root of the tree; carries the dotted path of the node at fault."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.path = path

    def under(self, prefix: str) -> Self:
        """Put the name of an enclosing node in front of the path, and return the same error."""
        self.path = f"{prefix}.{self.path}" if self.path else prefix
        return self

    def __str__(self) -> str:
        return f"at '{self.path}': {self.message}" if self.path else self.message


class GraphError(FlodlError):
    """A model is built or called wrongly."""


class BuildError(GraphError):
    """A builder call does not fit the chain so far."""


class TagError(GraphError):
    """A tag, group or label is not usable as a name."""


class RefError(GraphError):
    """`using` binds something that cannot be bound."""


class ShapeError(GraphError):
    """Tensors do not fit together at a node."""


class RouteError(GraphError):
    """A router or selector disagrees with its branches."""


class LoopError(GraphError):
    """A loop's count or condition is wrong."""


class InputError(GraphError):
    """A graph is called with the wrong inputs."""


class StateError(GraphError):
    """Carried state does not fit the call."""


class PathError(GraphError):
    """A dotted path leads nowhere."""


class MetricError(FlodlError):
    """A value cannot be recorded or exported."""


class ScheduleError(FlodlError):
    """A schedule or clipping argument is out of range."""


class StepError(FlodlError):
    """A training step is set up or called wrongly."""


class TrainError(FlodlError):
    """A trainer is set up or used wrongly, or training cannot go on."""


class NotFiniteError(TrainError):
    """The loss or the gradients are no longer numbers."""


class CheckpointError(FlodlError):
    """A checkpoint cannot be written or does not fit."""


class DamagedError(CheckpointError):
    """A file or bundle is not what was written; `what` says so without the advice."""

    def __init__(self, what: str, *, advice: str = "") -> None:
        super().__init__(f"{what}. {advice}" if advice else what)
        self.what = what


class WriteError(CheckpointError):
    """The disk is full, or the folder cannot be written."""


class DataError(FlodlError):
    """A loader, sampler or source is used wrongly."""


class CursorError(DataError):
    """A saved position does not fit the loader."""


class DataFileError(DataError):
    """A data file is missing or not what it should be."""


class DownloadError(DataError):
    """A data file cannot be fetched."""


class PictureError(FlodlError):
    """A picture cannot be drawn."""


class MonitorError(FlodlError):
    """A run cannot be watched, or its journal not be read or written."""


class ArgsError(FlodlError):
    """A dataclass or a schema cannot become a command line."""


class SetupError(FlodlError):
    """The environment or the command line is not usable."""


class ManifestError(SetupError):
    """An fdl.yml, or what it describes, cannot be used."""

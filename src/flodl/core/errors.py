"""Every error that flodl raises, as one tree.

    FlodlError                    the root: catch it to catch them all
    ├── GraphError                a model is built or called wrongly
    │   ├── BuildError            a builder call does not fit the chain built so far
    │   ├── TagError              a tag, group or label is not a valid name
    │   ├── RefError              `using` binds something that cannot be bound
    │   ├── ShapeError            tensors do not fit together at a node
    │   ├── RouteError            a router or selector disagrees with its branches
    │   ├── LoopError             a loop's count or condition is wrong
    │   ├── InputError            a graph is called with the wrong inputs
    │   ├── StateError            carried state does not fit the call
    │   └── PathError             a dotted path does not exist
    ├── MetricError               a value cannot be recorded or exported
    ├── ScheduleError             a schedule or clipping argument is out of range
    ├── StepError                 a training step is set up or called wrongly
    ├── TrainError                a trainer is set up or used wrongly, or training cannot continue
    │   └── NotFiniteError        the loss or the gradients are NaN or infinite
    ├── DistributedError          ranks are set up or used wrongly, or cannot continue together
    ├── CheckpointError           a checkpoint cannot be written or does not match
    │   ├── DamagedError          a file or bundle is damaged
    │   └── WriteError            the disk is full, or the folder is not writable
    ├── DataError                 a loader, sampler or source is used wrongly
    │   ├── CursorError           a saved position does not match the loader
    │   ├── DataFileError         a data file is missing or invalid
    │   └── DownloadError         a data file cannot be downloaded
    ├── HFError                   a Hugging Face model, config or tokenizer cannot be used
    ├── PictureError              a picture cannot be drawn
    ├── MonitorError              a run cannot be monitored, or its journal cannot be read or written
    ├── ArgsError                 a dataclass or schema cannot be turned into a command line
    └── SetupError                the environment or the command line is unusable
        └── ManifestError         an fdl.yml, or something it describes, is unusable

A message says what happened (with the value), what was expected and what to do. Each enclosing graph
prepends its name to the dotted path of the node:

>>> error = RouteError("the router returned 3 weights for 2 experts. Give it 2 outputs.", path="moe")
>>> print(error.under("encoder"))
at 'encoder.moe': the router returned 3 weights for 2 experts. Give it 2 outputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

# A message may show a value that is much too long, such as all labels of a dataset.
_LONGEST_LINE = 2000
_SHOWN = 400


class FlodlError(Exception):
    """The root of the tree; holds the dotted path of the node that caused the error.

    The middle of a very long line is left out.

    >>> str(FlodlError(f"seed={'7' * 10_000}. Pass an integer."))[400:434]
    ' … (9,223 characters left out) … 7'
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        message = _without_long_lines(message)
        super().__init__(message)
        self.message = message
        self.path = path

    def under(self, prefix: str) -> Self:
        """Prepend the name of an enclosing node to the path, and return the same error."""
        self.path = f"{prefix}.{self.path}" if self.path else prefix
        return self

    def __str__(self) -> str:
        return f"at '{self.path}': {self.message}" if self.path else self.message


def _without_long_lines(message: str) -> str:
    if len(message) <= _LONGEST_LINE:
        return message
    return "\n".join(
        line if len(line) <= _LONGEST_LINE else _without_middle(line) for line in message.split("\n")
    )


def _without_middle(line: str) -> str:
    left_out = len(line) - 2 * _SHOWN
    return f"{line[:_SHOWN]} … ({left_out:,} characters left out) … {line[-_SHOWN:]}"


class GraphError(FlodlError):
    """A model is built or called wrongly."""


class BuildError(GraphError):
    """A builder call does not fit the chain built so far."""


class TagError(GraphError):
    """A tag, group or label is not a valid name."""


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
    """A dotted path does not exist."""


class MetricError(FlodlError):
    """A value cannot be recorded or exported."""


class ScheduleError(FlodlError):
    """A schedule or clipping argument is out of range."""


class StepError(FlodlError):
    """A training step is set up or called wrongly."""


class TrainError(FlodlError):
    """A trainer is set up or used wrongly, or training cannot continue."""


class NotFiniteError(TrainError):
    """The loss or the gradients are NaN or infinite.

    `path` is the module that returned the first such value, `samples` are the indices of the samples of its
    batch, and `bundle` is the folder of the last bundle, as far as they are known.
    """

    def __init__(
        self, message: str, *, path: str = "", samples: tuple[int, ...] = (), bundle: Path | None = None
    ) -> None:
        super().__init__(message, path=path)
        self.samples, self.bundle = samples, bundle


class DistributedError(FlodlError):
    """Ranks are set up or used wrongly, or cannot continue together."""


class CheckpointError(FlodlError):
    """A checkpoint cannot be written or does not match."""


class DamagedError(CheckpointError):
    """A file or bundle is damaged; `what` is the message without the advice."""

    def __init__(self, what: str, *, advice: str = "") -> None:
        super().__init__(f"{what}. {advice}" if advice else what)
        self.what = what


class WriteError(CheckpointError):
    """The disk is full, or the folder is not writable."""


class DataError(FlodlError):
    """A loader, sampler or source is used wrongly."""


class CursorError(DataError):
    """A saved position does not match the loader."""


class DataFileError(DataError):
    """A data file is missing or invalid."""


class DownloadError(DataError):
    """A data file cannot be downloaded."""


class HFError(FlodlError):
    """A Hugging Face model, config or tokenizer cannot be used."""


class PictureError(FlodlError):
    """A picture cannot be drawn."""


class MonitorError(FlodlError):
    """A run cannot be monitored, or its journal cannot be read or written."""


class ArgsError(FlodlError):
    """A dataclass or schema cannot be turned into a command line."""


class SetupError(FlodlError):
    """The environment or the command line is unusable."""


class ManifestError(SetupError):
    """An fdl.yml, or something it describes, is unusable."""

"""Attributes of a monitor that do not exist raise an error with advice."""

from __future__ import annotations

from typing import Any

from flodl.core.errors import MonitorError
from flodl.core.usage.attributes import is_method, unknown_attribute

_ARGUMENTS = ("rank", "run_dir", "total_epochs")
# Arguments that are read only when a monitor is created.
_KEPT = ("name", "config", "origins", "views", "sinks", "console", "resources", "step_rate")
_LOG_STEP = (
    "Write monitor.log_step(step, {'loss': 0.5}) within an epoch, and monitor.log(epoch, …) at its end."
)
# What to write instead of an attribute that others have.
_INSTEAD = {
    **dict.fromkeys(("log_epoch", "end_epoch", "epoch"), "Write monitor.log(epoch, {'loss': 0.5})."),
    **dict.fromkeys(
        ("add_scalar", "add_scalars", "log_metric", "log_metrics", "log_dict", "record"), _LOG_STEP
    ),
    **dict.fromkeys(("end", "stop"), "Write monitor.finish(), or use the monitor in a with block."),
    **dict.fromkeys(("log_dir", "folder", "path"), "The folder of the run is monitor.run_dir."),
    **dict.fromkeys(("log_config", "log_params", "config"), "Write monitor.describe({'lr': 0.1})."),
    **dict.fromkeys(("metrics",), "The metrics of each epoch are in monitor.history."),
}


class UnknownAttributeError(MonitorError, AttributeError):
    """A monitor does not have this attribute."""


class CheckedAttributes:
    """The base of `Monitor`: an attribute that does not exist raises an error that suggests another.

    So does an assignment that would have no effect.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        kind = type(self)
        if name in _KEPT and kind.__module__.startswith("flodl."):
            raise UnknownAttributeError(
                f"monitor.{name} was assigned, but a monitor keeps what it was created with: the new value "
                f"would be ignored. {_INSTEAD.get(name) or f'Create a new Monitor(…, {name}=…).'}"
            )
        if is_method(kind, name) and not callable(value):
            raise UnknownAttributeError(
                f"monitor.{name} was assigned, but it is a method. Call it: monitor.{name}(…)."
            )
        if isinstance(found := getattr(kind, name, None), property) and found.fset is None:
            meaning = (found.__doc__ or "").partition("\n")[0]
            raise UnknownAttributeError(f"monitor.{name} was assigned, but it is read-only: {meaning}")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        known = [*(one for one in dir(type(self)) if not one.startswith("_")), *_ARGUMENTS]
        raise unknown_attribute(self, name, UnknownAttributeError, known=known, instead=_INSTEAD)

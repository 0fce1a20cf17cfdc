"""Warnings of torch functions that a mode calls: with the line of their caller, not with that of the mode."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, TextIO

import torch

# How the losses of torch begin, if input and target have different shapes.
_OF_LOSSES = "Using a target size"
_DISPATCH = torch.overrides.__file__


class Warned(NamedTuple):
    """A warning of torch, and the place that called the function."""

    message: Warning
    file: str
    line: int
    module: str
    registry: dict[Any, Any]

    @classmethod
    def at(cls, message: Warning, caller: FrameType) -> Warned:
        """Return a warning with the line that a frame executes."""
        names = caller.f_globals
        registry = names.setdefault("__warningregistry__", {})
        return cls(message, caller.f_code.co_filename, caller.f_lineno, str(names.get("__name__")), registry)

    @property
    def is_of_loss(self) -> bool:
        """Whether a loss warns that the shapes of input and target differ."""
        return str(self.message).startswith(_OF_LOSSES)

    def show(self) -> None:
        """Show the warning as if the function had been called there without the mode."""
        warnings.warn_explicit(
            self.message,
            type(self.message),
            self.file,
            self.line,
            module=self.module,
            registry=self.registry,
        )

    def silence(self) -> None:
        """Ignore it from now on; the loss would repeat it for every other size of a batch."""
        module = re.escape(self.module) + r"\Z"
        warnings.filterwarnings("ignore", _OF_LOSSES, type(self.message), module, self.line)


@contextmanager
def warnings_at_caller(
    mode: FrameType, function: Callable[..., Any], take: Callable[[Warned, FrameType], bool]
) -> Iterator[None]:
    """Move warnings from the line of a mode to the caller of a torch function, unless `take` keeps them.

    `mode` is the frame that calls the function in its place.
    """
    shown, of_mode = warnings.showwarning, mode.f_code.co_filename

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        caller = _caller(mode, function) if filename == of_mode and isinstance(message, Warning) else None
        if caller is None or not isinstance(message, Warning):
            shown(message, category, filename, lineno, file, line)
            return
        # The next warning may come from another line of the program.
        mode.f_globals.get("__warningregistry__", {}).clear()
        warned = Warned.at(message, caller)
        if not take(warned, caller):
            warned.show()

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = shown


def _caller(mode: FrameType, function: Callable[..., Any]) -> FrameType | None:
    """Return the frame that called a torch function, which may have called the mode itself."""
    frame = mode.f_back
    while frame is not None and frame.f_code.co_filename == _DISPATCH:
        frame = frame.f_back
    if frame is not None and frame.f_code is getattr(function, "__code__", None):
        return frame.f_back
    return frame

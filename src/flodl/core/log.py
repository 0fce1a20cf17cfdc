"""Printing at five levels of verbosity, on top of `logging`.

Normal and verbose lines go to standard output; debug and trace lines, warnings and errors go to standard
error. A callable argument is called only if the line is printed, so an expensive value (or one that would
synchronize with the device) costs nothing while its level is off:

>>> set_verbosity("normal")
>>> msg("epoch %d done", 3)
epoch 3 done
>>> debug("gradient norm %s", lambda: 1 / 0)

The logger is `logging.getLogger("flodl")`. Add handlers to it to send the lines elsewhere.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from enum import IntEnum

from . import environment
from .paths import suggestion

Message = str | Callable[[], object]


class Verbosity(IntEnum):
    """How much flodl prints."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2
    DEBUG = 3
    TRACE = 4


_LOGGING_LEVEL = {
    Verbosity.QUIET: logging.ERROR,
    Verbosity.NORMAL: logging.INFO,
    Verbosity.VERBOSE: 15,
    Verbosity.DEBUG: logging.DEBUG,
    Verbosity.TRACE: 5,
}


class _StandardStreams(logging.Handler):
    """Write to the current `sys.stdout` or `sys.stderr`, which a program may replace."""

    def emit(self, record: logging.LogRecord) -> None:
        to_stdout = _LOGGING_LEVEL[Verbosity.VERBOSE] <= record.levelno < logging.WARNING
        stream = sys.stdout if to_stdout else sys.stderr
        try:
            stream.write(self.format(record) + "\n")
            stream.flush()
        except BrokenPipeError:
            raise  # the reader is gone: end the program instead of printing about it
        except Exception:
            self.handleError(record)


def _logger() -> logging.Logger:
    logger = logging.getLogger("flodl")
    if not any(isinstance(handler, _StandardStreams) for handler in logger.handlers):
        for level in (Verbosity.VERBOSE, Verbosity.TRACE):
            logging.addLevelName(_LOGGING_LEVEL[level], level.name)
        logger.addHandler(_StandardStreams())
        logger.propagate = False
        _set_from_environment(logger)
    return logger


def _set_from_environment(logger: logging.Logger) -> None:
    text = environment.verbosity_text()
    logger.setLevel(_LOGGING_LEVEL[Verbosity.NORMAL])
    if text is None:
        return
    try:
        logger.setLevel(_LOGGING_LEVEL[parse_verbosity(text)])
    except ValueError as error:
        logger.warning("FLODL_VERBOSITY: %s Using 'normal'.", error)


def parse_verbosity(text: str | int) -> Verbosity:
    """Parse a level from its number or its name; case does not matter.

    >>> parse_verbosity(" Debug "), parse_verbosity("0")
    (<Verbosity.DEBUG: 3>, <Verbosity.QUIET: 0>)
    """
    word = str(text).strip().upper()
    for level in Verbosity:
        if word in (level.name, str(level.value)):
            return level
    names = [level.name.lower() for level in Verbosity]
    hint = suggestion(word.lower(), names, known_as="levels")
    raise ValueError(f"{text!r} is not a verbosity level (0 to 4, or a name). {hint}")


def set_verbosity(level: Verbosity | int | str) -> None:
    """Set how much flodl prints; overrides `FLODL_VERBOSITY`."""
    _logger().setLevel(_LOGGING_LEVEL[parse_verbosity(int(level) if isinstance(level, int) else level)])


def verbosity() -> Verbosity:
    """Return the current level."""
    effective = _logger().getEffectiveLevel()
    return next(
        (level for level in reversed(Verbosity) if _LOGGING_LEVEL[level] >= effective), Verbosity.QUIET
    )


def enabled(level: Verbosity) -> bool:
    """Return whether lines of that level are printed."""
    return _logger().isEnabledFor(_LOGGING_LEVEL[level])


def _log(logging_level: int, message: Message, args: tuple[object, ...]) -> None:
    logger = _logger()
    if logger.isEnabledFor(logging_level):
        text = message if isinstance(message, str) else str(message())
        logger.log(logging_level, text, *(arg() if callable(arg) else arg for arg in args))


def msg(message: Message, *args: object) -> None:
    """Print a line at the normal level."""
    _log(logging.INFO, message, args)


def verbose(message: Message, *args: object) -> None:
    """Print a line at the verbose level."""
    _log(_LOGGING_LEVEL[Verbosity.VERBOSE], message, args)


def debug(message: Message, *args: object) -> None:
    """Print a line at the debug level."""
    _log(logging.DEBUG, message, args)


def trace(message: Message, *args: object) -> None:
    """Print a line at the trace level."""
    _log(_LOGGING_LEVEL[Verbosity.TRACE], message, args)


def warn(message: Message, *args: object) -> None:
    """Print a warning to standard error."""
    _log(logging.WARNING, message, args)


def error(message: Message, *args: object) -> None:
    """Print an error to standard error, at every level."""
    _log(logging.ERROR, message, args)

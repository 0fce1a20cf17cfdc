"""Ctrl-C while a program starts: one line and exit code 130 instead of a traceback.

`flodl.cli` imports this module before anything else, so it imports only modules that the interpreter has
loaded already, or has built in. `./fdl` holds Ctrl-C back until this module handles it.
"""

from __future__ import annotations

# Importing `signal` takes 8 ms, in which Ctrl-C would print a traceback.
import _signal as signal  # type: ignore[import-not-found]
import atexit
import os
import sys

TYPE_CHECKING = False  # importing `typing` takes 10 ms
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any, NoReturn

EXIT_CODE = 130  # 128 + SIGINT, as in a shell
HELD = "flodl_held_interrupt"  # the -X option with which ./fdl starts a program in which SIGINT is blocked
_IMPORT = "<frozen importlib._bootstrap>"


class stop_during_imports:
    """Inside the block, Ctrl-C during an import ends the program with one line. Otherwise it raises as usual.

    An exception is not enough: C code may discard it. torch, for example, imports NumPy while it is imported,
    and continues without NumPy if that fails.

    >>> with stop_during_imports():
    ...     import json
    """

    def __enter__(self) -> None:
        self._previous: Any = None
        # A program that has a handler, or that ignores the signal, keeps that.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._process = os.getpid()
            try:
                self._previous = signal.signal(signal.SIGINT, self._handle)
            except ValueError:  # only the main thread can set a handler
                return

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, _number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._process and _is_importing(frame):
            _end_program()
        raise KeyboardInterrupt


def stop_with_one_line() -> None:
    """Let an uncaught KeyboardInterrupt end this program with one line and exit code 130."""
    # At a prompt, Ctrl-C ends what is running, not the program.
    if not hasattr(sys, "ps1") and not sys.flags.interactive and not isinstance(sys.excepthook, _Hook):
        stop_during_imports().__enter__()
        sys.excepthook = _Hook(sys.excepthook)
    if HELD in sys._xoptions:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def is_imported_by_program() -> bool:
    """Return whether the module that calls this is imported by the program itself, not by another module."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in ("__main__", "runpy")


class _Hook:
    """Handles KeyboardInterrupt; the previous `sys.excepthook` handles other exceptions."""

    def __init__(self, previous: Any) -> None:
        self._previous = previous

    def __call__(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            self._previous(kind, error, traceback)
            return
        _print_stopped()
        raise SystemExit(EXIT_CODE)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != _IMPORT:
        frame = frame.f_back
    return frame is not None


def _end_program() -> NoReturn:
    """Print the line, run the functions that are registered for the exit, and end at once."""
    _print_stopped()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    finally:
        os._exit(EXIT_CODE)


def _print_stopped() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C
    try:
        print("Stopped.", file=sys.stderr, flush=True)
    except (OSError, ValueError):  # it is closed
        return

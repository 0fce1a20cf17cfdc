"""Errors that cross from a worker process: as they were, with the frames of the user's code as a note."""

from __future__ import annotations

import os
import pickle
import re
import traceback
from ast import literal_eval
from dataclasses import dataclass
from pathlib import Path

import torch

from flodl.core.errors import FlodlError
from flodl.core.usage.tracebacks import mark_user_error

_LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], Path(torch.__file__).parent))
# How many errors of a chain (`raise … from …`) are sent.
_MAX_CHAIN = 8
# An error that a worker of a torch DataLoader sent: torch puts the traceback into the message.
_OF_TORCH = re.compile(r"Caught \w+ in DataLoader worker process \d+\.\nOriginal ", re.DOTALL)
_FRAME = re.compile(r'  File "(.*?)", line \d+, in .*\n(?:    .*\n)*')


@dataclass(frozen=True)
class Failure:
    """An error sent from a worker as data: if it were raised, torch would take 5 s to end the worker."""

    pickled: bytes
    frames: str
    cause: Failure | None
    is_from: bool

    @staticmethod
    def of(error: BaseException, *, depth: int = 0) -> Failure:
        """Return an error, ready to be sent.

        >>> Failure.of(ValueError("the file is empty")).error()
        ValueError('the file is empty')
        """
        earlier = error.__cause__
        if earlier is None and not error.__suppress_context__:
            earlier = error.__context__
        cause = None if earlier is None or depth == _MAX_CHAIN else Failure.of(earlier, depth=depth + 1)
        if cause is not None and not cause.frames and cause.cause is None:
            cause = None  # within a library, which says more with the later error
        frames = _users_frames(traceback.extract_tb(error.__traceback__))
        return Failure(_pickled(error), frames, cause, error.__cause__ is not None)

    def error(self) -> BaseException:
        """Return the error, with the frames of the user's code in the worker as a note."""
        error = _unpickled(self.pickled)
        _add_frames(error, self.frames)
        earlier = None if self.cause is None else self.cause.error()
        error.__cause__ = earlier if self.is_from else None
        # Setting the cause, even to None, hides the context.
        error.__suppress_context__ = self.is_from
        error.__context__ = earlier
        return error


def clarify_torch_error(error: Exception) -> bool:
    """Move the traceback that a worker of a torch DataLoader puts into a message to a note, if there is one.

    Only the frames of the user's code remain. Return whether it was such an error.
    """
    told = str(error.args[0]) if len(error.args) == 1 else ""
    if not _OF_TORCH.match(told):
        return False
    frames = [found.group(0) for found in _FRAME.finditer(told) if not found.group(1).startswith(_LIBRARIES)]
    # Behind the last frame: "ValueError: the file is empty", then the notes of the error.
    last = [*_FRAME.finditer(told)][-1].end() if _FRAME.search(told) else 0
    name, _, message = told[last:].rstrip("\n").lstrip(" ~^\n").partition(": ")
    if name.rpartition(".")[2] != type(error).__name__:
        message = f"{name}: {message}" if message else name  # such as a RuntimeError in place of another
    error.args = (_key(message) if isinstance(error, KeyError) else message,)
    if isinstance(error, FlodlError):
        error.message = message
    _add_frames(error, "".join(frames))
    return True


def _key(shown: str) -> object:
    """Return the key that the message of a KeyError shows, if it is a literal."""
    try:
        return literal_eval(shown)
    except (ValueError, SyntaxError):
        return shown


def _add_frames(error: BaseException, frames: str) -> None:
    if frames:
        error.add_note(f"In a worker of the loader:\n{frames.rstrip()}")
        # The frames here are those that received it.
        mark_user_error(error)


def _users_frames(stack: traceback.StackSummary) -> str:
    """Return the frames outside flodl and torch, as Python shows them."""
    frames = [frame for frame in stack if not frame.filename.startswith(_LIBRARIES)]
    return "".join(traceback.StackSummary.from_list(frames).format())


def _pickled(error: BaseException) -> bytes:
    """Return an error as bytes: with its type if that can be sent, else with that of its closest base."""
    try:
        sent = pickle.dumps(error)
        if str(_unpickled(sent)) == str(error):
            return sent
    except Exception:
        pass  # the type is local, its __init__ takes other arguments, or an attribute cannot be sent
    for kind in type(error).__mro__[:-2]:
        told = str(error) if kind is type(error) else f"{type(error).__name__}: {error}"
        try:
            sent = pickle.dumps((kind, told, getattr(error, "__notes__", ())))
            if str(_unpickled(sent)) == told:
                return sent
        except Exception:
            continue
    return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))


def _unpickled(sent: bytes) -> BaseException:
    found = pickle.loads(sent)
    if isinstance(found, BaseException):
        return found
    kind, told, notes = found
    error: BaseException = kind.__new__(kind, told)
    error.args = (told,)
    for note in notes:
        error.add_note(note)
    return error

"""Write a file to a path of the user, or say why that is impossible."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from .errors import FlodlError
from .files import write_atomic
from .formats import a_type


def write_output(
    path: str | os.PathLike[str], content: str | bytes, *, example: str, error: type[FlodlError]
) -> Path:
    """Write a file atomically; raise `error` if the path cannot be written.

    Characters that UTF-8 cannot encode (lone surrogates) are escaped.

    >>> write_output("", "x", example="a.csv", error=FlodlError)
    Traceback (most recent call last):
    flodl.core.errors.FlodlError: the path is empty. Pass the path of a file, such as 'a.csv'.
    """
    check_path(path, example=example, error=error)
    if isinstance(content, str):
        content = content.encode("utf-8", "backslashreplace")
    try:
        return write_atomic(path, content)
    except OSError as problem:
        reason = explain_write(problem, Path(path), example=example)
        raise error(f"cannot write {shown(path)}: {reason}") from problem


def check_path(path: object, *, example: str, error: type[FlodlError], what: str = "file") -> None:
    """Raise `error` unless this can be a path; whether it can be written is not checked."""
    check_path_type(path, example=example, error=error, what=what)
    assert isinstance(path, str | os.PathLike)
    advice = f"Pass the path of a {what}, such as {example!r}."
    if not os.fspath(path):
        raise error(f"the path is empty. {advice}")
    if "\0" in os.fspath(path):
        raise error(f"the path {shown(path)} contains a NUL character. {advice}")


def check_path_type(path: object, *, example: str, error: type[FlodlError], what: str = "file") -> None:
    """Raise `error` unless this is text or a path, which may be empty."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise error(f"the path is {a_type(path)}. Pass the path of a {what}, such as {example!r}.")


def explain_write(error: OSError, path: Path | None, *, example: str, unchanged: str = "") -> str:
    """Return why a file could not be written, what stays as it was, and what to do.

    >>> explain_write(OSError(28, "No space left on device"), None, example="a.csv")
    'No space left on device. Free some disk space or choose a writable folder.'
    """
    reason, advice = _explanation(error, path, example)
    return " ".join(filter(None, [f"{reason}.", unchanged, advice]))


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path in quotes; of a long one, the beginning."""
    text = os.fspath(path)
    return repr(text) if len(text) <= 200 else f"{text[:80]!r}… ({len(text)} characters)"


def _explanation(error: OSError, path: Path | None, example: str) -> tuple[str, str]:
    if error.errno == errno.ENAMETOOLONG:
        return "the name is too long", "Choose a shorter one: most file systems allow 255 bytes for a name."
    if path is not None and path.is_dir():
        return "it is a folder", f"Pass a file in it, such as {str(path / example)!r}."
    existing = next((parent for parent in path.parents if parent.exists()), None) if path else None
    if existing is not None and not existing.is_dir():
        return f"{str(existing)!r} is a file, not a folder", "Choose another path."
    return f"{error.strerror or error}", "Free some disk space or choose a writable folder."

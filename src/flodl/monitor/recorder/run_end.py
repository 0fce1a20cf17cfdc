"""The status of a run, derived from the exception that ended it."""

from __future__ import annotations


def end_status(error: BaseException | None) -> tuple[str, str | None]:
    """Return the status and the message for a run that ended with `error`, or normally if it is None.

    >>> end_status(None), end_status(SystemExit(0)), end_status(SystemExit(3))
    (('finished', None), ('finished', None), ('stopped', 'the program exited with code 3'))
    >>> end_status(ValueError("no data"))
    ('failed', 'ValueError: no data')
    """
    if error is None:
        return "finished", None
    if isinstance(error, KeyboardInterrupt):
        return "stopped", "interrupted from the keyboard"
    if isinstance(error, SystemExit):
        if error.code is None or error.code == 0:
            return "finished", None
        # A subclass of SystemExit may carry more text than its code.
        text = "" if str(error) == str(error.code) else f": {error}"
        if isinstance(error.code, int):
            return "stopped", f"the program exited with code {error.code}{text}"
        return "stopped", f"the program exited: {error.code}"
    return "failed", f"{type(error).__name__}: {error}"

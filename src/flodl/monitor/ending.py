"""How a run has ended, from what brought it to its end."""

from __future__ import annotations


def how_it_ended(error: BaseException | None) -> tuple[str, str | None]:
    """Give the status and the message of an end.

    >>> how_it_ended(None), how_it_ended(SystemExit(0)), how_it_ended(SystemExit(3))
    (('finished', None), ('finished', None), ('stopped', 'the program left with exit code 3'))
    >>> how_it_ended(ValueError("no data"))
    ('failed', 'ValueError: no data')
    """
    if error is None:
        return "finished", None
    if isinstance(error, KeyboardInterrupt):
        return "stopped", "stopped by the keyboard"
    if isinstance(error, SystemExit):
        if error.code is None or error.code == 0:
            return "finished", None
        words = "" if str(error) == str(error.code) else f": {error}"  # an exit may say more than its code
        if isinstance(error.code, int):
            return "stopped", f"the program left with exit code {error.code}{words}"
        return "stopped", f"the program left: {error.code}"
    return "failed", f"{type(error).__name__}: {error}"

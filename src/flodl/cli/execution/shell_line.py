"""The shell line of a `run:` command: `run`, `append` and the words of the user."""

from __future__ import annotations

import re
import shlex

from flodl.core.errors import ManifestError

_SAFE = re.compile(r"[A-Za-z0-9_\-./:=+@,]+\Z")
_LONE_DASHES = re.compile(r"(?:^|\s)--(?=\s|$)")


def quote(word: str) -> str:
    """Quote a word for a POSIX shell if necessary.

    >>> quote("a/b:c=1"), quote("two words"), quote("")
    ('a/b:c=1', "'two words'", "''")
    """
    return word if _SAFE.match(word) else "''" if not word else shlex.quote(word)


def compose(run: str, append: str, user: tuple[str, ...]) -> str:
    """Combine `run`, `append` and the words of the user. `append` and the words are each split at `--`.

    >>> compose("pytest", "-- --nocapture", ("-p", "x", "--", "--ignored"))
    'pytest -p x -- --nocapture --ignored'
    """
    lone = _LONE_DASHES.search(append)
    append_before, append_after = (append[: lone.start()], append[lone.end() :]) if lone else (append, "")
    split = user.index("--") if "--" in user else len(user)
    user_before, user_after = user[:split], user[split + 1 :]
    parts = [run.rstrip("\n"), append_before.strip(), *map(quote, user_before)]
    if lone or user_after:
        parts += ["--", append_after.strip(), *map(quote, user_after)]
    return " ".join(part for part in parts if part)


def stoppable(command: list[str]) -> list[str]:
    """Let a shell outlive a signal until the program that it runs has ended, then exit with its code.

    Without this, the shell would end at once, and leave a program behind that is still saving.

    >>> stoppable(["sh", "-c", "cd a && python train.py"])
    ['sh', '-c', "trap 'exit $?' INT TERM; cd a && python train.py"]
    """
    if command[:2] != ["sh", "-c"]:
        return command
    return [*command[:2], f"trap 'exit $?' INT TERM; {command[2]}", *command[3:]]


def user_words(title: str, tail: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words for the script: those after the first `--`. Raise if there are words before it."""
    split = tail.index("--") if "--" in tail else len(tail)
    if split:
        if "--dry-run" in tail[:split]:
            name = title.removeprefix("fdl ")
            raise ManifestError(f"`{title}` has no --dry-run. Use `fdl run --dry-run {name}`.")
        words = " ".join(map(quote, tail[:split] + tail[split + 1 :]))
        raise ManifestError(f"`{title}` does not accept extra arguments. Use `{title} -- {words}`.")
    return tail[1:]

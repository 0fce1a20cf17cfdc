"""The shell line of a `run:` command: its own text, what it appends, and the words of the user."""

from __future__ import annotations

import re
import shlex

from flodl.core.errors import ManifestError

_SAFE = re.compile(r"[A-Za-z0-9_\-./:=+@,]+\Z")
_LONE_DASHES = re.compile(r"(?:^|\s)--(?=\s|$)")


def quote(word: str) -> str:
    """Quote a word for a POSIX shell, if it needs it.

    >>> quote("a/b:c=1"), quote("two words"), quote("")
    ('a/b:c=1', "'two words'", "''")
    """
    return word if _SAFE.match(word) else "''" if not word else shlex.quote(word)


def compose(run: str, append: str, user: tuple[str, ...]) -> str:
    """Put a shell line together: `--` splits what is appended and what the user says, each into two halves.

    >>> compose("pytest", "-- --nocapture", ("-p", "x", "--", "--ignored"))
    'pytest -p x -- --nocapture --ignored'
    """
    lone = _LONE_DASHES.search(append)
    append_pre, append_post = (append[: lone.start()], append[lone.end() :]) if lone else (append, "")
    split = user.index("--") if "--" in user else len(user)
    user_pre, user_post = user[:split], user[split + 1 :]
    parts = [run.rstrip("\n"), append_pre.strip(), *map(quote, user_pre)]
    if lone or user_post:
        parts += ["--", append_post.strip(), *map(quote, user_post)]
    return " ".join(part for part in parts if part)


def user_words(title: str, tail: tuple[str, ...]) -> tuple[str, ...]:
    """Give the words for the script: those after the first `--`; any before it are refused."""
    split = tail.index("--") if "--" in tail else len(tail)
    if split:
        if "--dry-run" in tail[:split]:
            name = title.removeprefix("fdl ")
            raise ManifestError(f"`{title}` has no --dry-run; use `fdl run --dry-run {name}`.")
        words = " ".join(map(quote, tail[:split] + tail[split + 1 :]))
        raise ManifestError(f"`{title}` does not accept extra args; use `{title} -- {words}`.")
    return tail[1:]

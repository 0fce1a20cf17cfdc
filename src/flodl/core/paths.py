"""Dotted paths, which address the parts of a model, their tags and their metrics.

A path consists of segments joined by dots. In a pattern, `*`, `?` and `[…]` match within one segment, and
`**` matches any number of segments, including none:

>>> matches("encoder.*", "encoder.scan"), matches("encoder.*", "encoder.scan.hidden")
(True, False)
>>> matches("**.hidden", "encoder.scan.hidden"), matches("**.hidden", "hidden")
(True, True)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from .errors import PathError, TagError
from .formats import a_type

_GLOB = re.compile(r"[*?\[]")
# How similar a name must be to a known one, from 0 to 1, and how long a beginning must be, to be suggested.
_SIMILAR = 0.72
_SIMILAR_IF_SHORT = 0.6
_SHORTEST_START = 3
# A number is a name too, as in `encoder.layer.0`.
_NAME = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_\-]*|0|[1-9][0-9]*)\Z")


def check_name(name: object, what: str) -> str:
    """Return `name` if it is a valid path segment; otherwise raise an error that calls it a `what`.

    >>> check_name("hidden", "tag")
    'hidden'
    >>> check_name("a.b", "tag")
    Traceback (most recent call last):
    flodl.core.errors.TagError: the tag 'a.b' has a dot, which separates the segments of a path. \
Use letters, digits, '_' and '-', for example 'a_b'.
    """
    if isinstance(name, str) and _NAME.match(name):
        return name
    if isinstance(name, str) and "." in name:
        why = "has a dot, which separates the segments of a path"
    elif name == "":
        why = "is empty"
    elif isinstance(name, str):
        why = "is not a name"
    else:
        raise TagError(f"the {what} {_short(name)} is {a_type(name)}. Pass a string, such as 'hidden'.")
    # A leading underscore would hide the tag from parent graphs.
    usable = re.sub(r"[^A-Za-z0-9_\-]", "_", str(name)).strip("_") or what
    if not _NAME.match(usable):
        usable = f"{what}_{usable}"
    raise TagError(f"the {what} {name!r} {why}. Use letters, digits, '_' and '-', for example {usable!r}.")


def split(path: str) -> list[str]:
    """Split a path into its segments; raise if the path or a segment is empty."""
    segments = path.split(".") if isinstance(path, str) else []
    if not segments or not all(segments):
        raise PathError(
            f"{_short(path)} is not a path. Join the names with dots, outermost first: 'encoder.scan'."
        )
    return segments


def _short(value: object) -> str:
    """Return a value for a message: the type alone if its text is long, as that of a module or tensor."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"({type(value).__name__})"


def is_glob(path: str) -> bool:
    """Return whether a path is a pattern."""
    return isinstance(path, str) and bool(_GLOB.search(path))


def matches(pattern: str, path: str) -> bool:
    """Return whether `path` matches `pattern`, segment by segment."""
    return _match(pattern.split("."), path.split("."))


def _match(pattern: Sequence[str], path: Sequence[str]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_match(pattern[1:], path[skip:]) for skip in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and _match(pattern[1:], path[1:])


def nearest(name: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """Return the known names that `name` may stand for, best first: similar ones, or those with its words.

    >>> nearest("encodr.scan", ["encoder.scan", "decoder", "encoder"])
    ['encoder.scan']
    >>> nearest("clip", ["clip_norm", "clip_value", "tail"]), nearest("print", ["precision"])
    (['clip_norm', 'clip_value'], [])
    """
    known = list(dict.fromkeys(candidates))
    lowered: dict[str, str] = {}
    for candidate in known:
        lowered.setdefault(candidate.lower(), candidate)
    wanted = name.lower()
    likely = [one for one in lowered if _is_similar(wanted, one)]
    likely = likely or [one for one in lowered if _is_part(wanted, one)]
    close = difflib.get_close_matches(wanted, likely, n=limit, cutoff=0.0)
    return [lowered[match] for match in close]


def _is_similar(one: str, other: str) -> bool:
    matcher = difflib.SequenceMatcher(None, one, other)
    # Upper bounds first: a model may have thousands of names.
    bounds = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)
    # One letter is a third of a short name.
    least = _SIMILAR if max(len(one), len(other)) > 3 else _SIMILAR_IF_SHORT
    return all(bound() >= least for bound in bounds)


def _is_part(one: str, other: str) -> bool:
    """Return whether the words of one name are all in the other, or one is the beginning of the other."""
    words, others = ({*re.split(r"[^a-z0-9]+", text)} - {""} for text in (one, other))
    if not words or not others:
        return False
    shorter = min(one, other, key=len)
    starts = len(shorter) >= _SHORTEST_START and one.startswith(other) | other.startswith(one)
    return words <= others or others <= words or starts


def did_you_mean(names: Iterable[str]) -> str:
    """Return a question that asks whether one of these names was meant, or "" if there are none.

    >>> did_you_mean(["hidden", "output"]), did_you_mean([])
    ("Did you mean 'hidden' or 'output'?", '')
    """
    listed = " or ".join(map(repr, names))
    return f"Did you mean {listed}?" if listed else ""


def suggestion(name: str, candidates: Iterable[str], *, known_as: str) -> str:
    """Return a hint for an unknown name: similar names, or else up to twelve of the known ones.

    >>> suggestion("hiden", ["hidden", "output"], known_as="tags")
    "Did you mean 'hidden'?"
    >>> suggestion("q", ["hidden", "output"], known_as="tags")
    "The tags here are 'hidden', 'output'."
    """
    known = list(dict.fromkeys(candidates))
    if close := did_you_mean(nearest(name, known)):
        return close
    if not known:
        return f"There are no {known_as} here."
    shown = ", ".join(repr(candidate) for candidate in known[:12])
    more = f" and {len(known) - 12} more" if len(known) > 12 else ""
    return f"The {known_as} here are {shown}{more}."

"""What a command line takes, whoever declared it: a dataclass here, or a program through its schema."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

SCALARS = ("string", "int", "float", "path")
TYPES = ("bool", *SCALARS, *(f"list[{name}]" for name in SCALARS))
RESERVED_LONG = frozenset({"help", "version", "quiet", "env"})
# What fdl takes out of every command line besides, or what Args answers itself.
TAKEN_LONG = RESERVED_LONG | {
    "verbose",
    "ansi",
    "no-ansi",
    "no-color",
    "no-append",
    "fdl-schema",
    "refresh-schema",
}
RESERVED_SHORT = frozenset("hVqve")
_PIECE = re.compile(r'\s*"(?P<quoted>(?:[^"\\]|\\.)*)"\s*(?:,|\Z)|(?P<plain>[^,]*)(?:,|\Z)', re.DOTALL)


@dataclass(frozen=True)
class Parameter:
    """One option or positional argument."""

    name: str
    kind: Literal["option", "argument"]
    type: str
    help: str = ""
    default: Any = None
    required: bool = False
    choices: tuple[Any, ...] = ()
    short: str = ""
    env: str = ""
    completer: str = ""
    variadic: bool = False
    bare: Any = field(default=None)
    as_tuple: bool = False

    @property
    def long(self) -> str:
        """The name on the command line: `batch_size` is `batch-size` there."""
        return self.name.replace("_", "-")

    @property
    def is_list(self) -> bool:
        return self.type.startswith("list[")

    @property
    def scalar(self) -> str:
        """The type of one value.

        >>> Parameter("sizes", "option", "list[int]").scalar
        'int'
        """
        return self.type[5:-1] if self.is_list else self.type

    @property
    def takes_value(self) -> bool:
        return self.type != "bool"

    @property
    def can_be_denied(self) -> bool:
        """Whether there is a `--no-name`: for a flag that may be on without being given."""
        return self.type == "bool" and (self.default in (True, "true") or bool(self.env))


def format_value(value: object) -> str:
    """Write a value as it would be typed; a piece of a list that has a comma of its own stands in quotes.

    >>> format_value(True), format_value(0.1), format_value([1, 2]), format_value(["a", "b,c"])
    ('true', '0.1', '1,2', 'a,"b,c"')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return ",".join(_piece(format_value(item)) for item in value)
    return str(value)


def _piece(text: str) -> str:
    plain = bool(text) and text == text.strip() and "," not in text and not text.startswith('"')
    return text if plain else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def split_pieces(text: str) -> list[str]:
    """Take the text of a list apart at its commas; blanks and empty pieces count only in quotes.

    >>> split_pieces('a, b,,"c,d"," "')
    ['a', 'b', 'c,d', ' ']
    """
    pieces = []
    for match in _PIECE.finditer(text):
        quoted, plain = match["quoted"], (match["plain"] or "").strip()
        if quoted is not None:
            pieces.append(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
        elif plain:
            pieces.append(plain)
    return pieces


def has_empty_piece(text: str) -> bool:
    """Say whether a comma has nothing on one side of it; a text that is empty is a list of nothing.

    >>> [has_empty_piece(text) for text in ("1,,2", "1,", "1, 2", '"",1', "")]
    [True, True, False, False, False]
    """
    for match in _PIECE.finditer(text) if text.strip() else ():
        empty = match["quoted"] is None and not (match["plain"] or "").strip()
        if empty and (match.group() or text[match.start() - 1] == ","):
            return True
    return False

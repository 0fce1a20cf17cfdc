"""`Parameter`: one option or positional argument, declared by a dataclass or by the schema of a program."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

SCALARS = ("string", "int", "float", "path")
TYPES = ("bool", *SCALARS, *(f"{kind}[{name}]" for kind in ("list", "dict") for name in SCALARS))
_TUPLE = re.compile(rf"tuple\[((?:{'|'.join(SCALARS)})(?:,(?:{'|'.join(SCALARS)}))*)\]\Z")
RESERVED_LONG = frozenset({"help", "version", "quiet", "env"})
# Also options that fdl removes from every command line, and options that Args handles itself.
RESERVED_IN_ARGS = RESERVED_LONG | {
    "verbose",
    "ansi",
    "no-ansi",
    "no-color",
    "no-append",
    "fdl-schema",
    "refresh-schema",
}
RESERVED_SHORT = frozenset("hVqve")
_ITEM = re.compile(r'\s*"(?P<quoted>(?:[^"\\]|\\.)*)"\s*(?:,|\Z)|(?P<plain>[^,]*)(?:,|\Z)', re.DOTALL)


@dataclass(frozen=True)
class Parameter:
    """One option or positional argument. The name of a nested field is its path, such as `optimizer.lr`."""

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
    optional: bool = False  # whether a field may be None
    group: str = ""  # the optional dataclass that it belongs to, if that is None by default

    @property
    def long(self) -> str:
        """The name on the command line: `batch_size` becomes `batch-size`."""
        return self.name.replace("_", "-")

    @property
    def is_list(self) -> bool:
        return self.type.startswith("list[")

    @property
    def is_dict(self) -> bool:
        return self.type.startswith("dict[")

    @property
    def is_tuple(self) -> bool:
        return self.type.startswith("tuple[")

    @property
    def is_repeatable(self) -> bool:
        """Whether the values of a repeated option add up; otherwise the last one is used."""
        return self.is_list or self.is_dict

    @property
    def item_types(self) -> tuple[str, ...]:
        """The types of the items of a tuple.

        >>> Parameter("betas", "option", "tuple[float,float]").item_types
        ('float', 'float')
        """
        return tuple(self.type[6:-1].split(","))

    @property
    def scalar(self) -> str:
        """The type of one value; of a tuple with items of several types, string.

        >>> Parameter("sizes", "option", "list[int]").scalar
        'int'
        """
        if self.is_tuple:
            return self.item_types[0] if len(set(self.item_types)) == 1 else "string"
        return self.type[5:-1] if self.is_repeatable else self.type

    @property
    def metavar(self) -> str:
        """What the help shows for the value.

        >>> Parameter("weights", "option", "dict[float]").metavar
        'KEY=FLOAT'
        """
        if self.is_tuple:
            return ",".join(self.item_types).upper()
        return f"KEY={self.scalar.upper()}" if self.is_dict else self.scalar.upper()

    @property
    def takes_value(self) -> bool:
        return self.type != "bool"

    @property
    def has_negation(self) -> bool:
        """Whether there is a `--no-name`: true for a flag that a default or a variable can switch on."""
        return self.type == "bool" and (self.default in (True, "true") or bool(self.env))


def is_type(name: object) -> bool:
    """Return whether a schema may use the name of a type."""
    return name in TYPES or (isinstance(name, str) and _TUPLE.match(name) is not None)


def format_value(value: object) -> str:
    """Format a value as it would be typed. A list item that contains a comma is quoted.

    >>> format_value(True), format_value(0.1), format_value([1, 2]), format_value(["a", "b,c"])
    ('true', '0.1', '1,2', 'a,"b,c"')
    >>> format_value({"cat": 1, "dog": 2.5})
    'cat=1,dog=2.5'
    """
    if isinstance(value, dict):
        return ",".join(_quote_item(f"{key}={format_value(item)}") for key, item in value.items())
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return ",".join(_quote_item(format_value(item)) for item in value)
    return str(value)


def find_choice(text: str, scalar: str, choices: tuple[Any, ...]) -> Any:
    """Return the choice that the text means, or None; numbers are compared by value.

    >>> find_choice("1", "float", (1.0, 2.5)), find_choice("2.50", "float", ("1.0", "2.5"))
    (1.0, '2.5')
    >>> find_choice("1", "string", ("1.0",))
    """
    convert = {"int": int, "float": float}.get(scalar, str)
    for choice in choices:
        if format_value(choice) == text:
            return choice
    try:
        return next((one for one in choices if convert(format_value(one)) == convert(text)), None)
    except ValueError:
        return None


def _quote_item(text: str) -> str:
    is_plain = bool(text) and text == text.strip() and "," not in text and not text.startswith('"')
    return text if is_plain else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def split_list(text: str) -> list[str]:
    """Split the text of a list at its commas. Surrounding spaces and empty items count only in quotes.

    >>> split_list('a, b,,"c,d"," "')
    ['a', 'b', 'c,d', ' ']
    """
    items = []
    for match in _ITEM.finditer(text):
        quoted, plain = match["quoted"], (match["plain"] or "").strip()
        if quoted is not None:
            items.append(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
        elif plain:
            items.append(plain)
    return items


def has_empty_item(text: str) -> bool:
    """Return whether an item next to a comma is empty. Empty text is an empty list.

    >>> [has_empty_item(text) for text in ("1,,2", "1,", "1, 2", '"",1', "")]
    [True, True, False, False, False]
    """
    for match in _ITEM.finditer(text) if text.strip() else ():
        empty = match["quoted"] is None and not (match["plain"] or "").strip()
        if empty and (match.group() or text[match.start() - 1] == ","):
            return True
    return False

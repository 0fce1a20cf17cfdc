"""What a command line takes, whoever declared it: a dataclass here, or a program through its schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

SCALARS = ("string", "int", "float", "path")
TYPES = ("bool", *SCALARS, *(f"list[{name}]" for name in SCALARS))
RESERVED_LONG = frozenset({"help", "version", "quiet", "env"})
RESERVED_SHORT = frozenset("hVqve")


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


def text_of(value: object) -> str:
    """Write a value as it would be typed.

    >>> text_of(True), text_of(0.1), text_of([1, 2])
    ('true', '0.1', '1,2')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return ",".join(map(text_of, value))
    return str(value)

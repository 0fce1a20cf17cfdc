"""How the fields of a dataclass say more about themselves than a type and a default."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

KEY = "flodl.cli"


def option(
    default: Any = dataclasses.MISSING,
    *,
    help: str = "",
    short: str = "",
    choices: Sequence[Any] | None = None,
    env: str | None = None,
    bare: Any = None,
    completer: str = "",
) -> Any:
    """Declare an option `--name`.

    `env` names a variable that is read when the option is not given: for a flag 1, true, yes or on, and 0,
    false, no or off. `bare` is the value of `--name` alone, for an optional field; `completer` is a shell
    command whose lines are offered for completion.
    """
    given = {
        "help": help,
        "short": short,
        "choices": None if choices is None else tuple(choices),
        "env": env,
        "bare": bare,
    }
    return _field(default, {"kind": "option", **given, "completer": completer})


def argument(
    default: Any = dataclasses.MISSING,
    *,
    help: str = "",
    choices: Sequence[Any] | None = None,
    completer: str = "",
) -> Any:
    """Declare a positional argument; of a list, it takes all that are left."""
    given = {"help": help, "choices": None if choices is None else tuple(choices), "completer": completer}
    return _field(default, {"kind": "argument", **given})


def _field(default: Any, description: dict[str, Any]) -> Any:
    metadata = {KEY: description}
    if isinstance(default, (list, dict, set)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)

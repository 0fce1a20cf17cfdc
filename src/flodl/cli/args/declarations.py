"""`option()` and `argument()`, which describe the command line parameter of a dataclass field."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from flodl.core.usage.calls import ArgsCallError, explain_calls

METADATA_KEY = "flodl.cli"

# What argparse, click and typer call it.
_OF_OTHERS = {
    "type": "Annotate the field: x: int = ….",
    **dict.fromkeys(("action", "is_flag"), "For a flag, annotate the field as bool."),
    **dict.fromkeys(("nargs", "multiple"), "Annotate the field as list[T] or tuple[T, U]."),
    "required": "A field without a default is a positional argument; an option is never required.",
    **dict.fromkeys(("dest", "name", "long"), "The option has the name of the field."),
    "metavar": "Leave it out: the help shows the type.",
    "default_factory": "Pass the default itself, such as option([1, 2]): it is copied.",
}


@explain_calls(ArgsCallError, elsewhere=_OF_OTHERS, example="Write option(1e-3, help='The learning rate.').")
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

    `env` names an environment variable that is read when the option is missing from the command line. A flag
    accepts 1, true, yes and on, or 0, false, no and off. `bare` is the value of `--name` without a value, for
    an optional field. `completer` is a shell command that prints one completion per line.
    """
    description = {
        "kind": "option",
        "help": help,
        "short": short,
        "choices": None if choices is None else tuple(choices),
        "env": env,
        "bare": bare,
        "completer": completer,
    }
    return _field(default, description)


@explain_calls(ArgsCallError, elsewhere=_OF_OTHERS, example="Write argument(help='The data.').")
def argument(
    default: Any = dataclasses.MISSING,
    *,
    help: str = "",
    choices: Sequence[Any] | None = None,
    completer: str = "",
) -> Any:
    """Declare a positional argument. A list field takes all remaining arguments."""
    description = {
        "kind": "argument",
        "help": help,
        "choices": None if choices is None else tuple(choices),
        "completer": completer,
    }
    return _field(default, description)


def _field(default: Any, description: dict[str, Any]) -> Any:
    metadata = {METADATA_KEY: description}
    if dataclasses.is_dataclass(default) and not isinstance(default, type):
        return dataclasses.field(default_factory=lambda: dataclasses.replace(default), metadata=metadata)
    if isinstance(default, (list, dict, set)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)

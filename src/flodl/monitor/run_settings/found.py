"""The settings of the user: those that the program has in its variables, and those it was started with."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from types import FrameType
from typing import Any

from flodl.core import log
from flodl.core.contents import is_user_file
from flodl.core.environment import resolved_config
from flodl.core.plain import plain, settings_of

# The variables whose dataclasses are settings; an argparse.Namespace is, whatever its name.
_NAMES = frozenset(
    {"args", "arguments", "cfg", "conf", "config", "flags", "hparams", "opt", "options", "params", "settings"}
)


def found_settings(frame: FrameType | None) -> dict[str, Any]:
    """Return the settings in the variables of the program, without those that `flodl.cli.Args` has published.

    Nothing is found if the search fails: it must not end a run.
    """
    try:
        published = {name.replace("-", "_").partition(".")[0] for name in resolved_config()}
        return {name: value for name, value in _in_variables(frame).items() if name not in published}
    except Exception as error:  # from a class of the user
        log.debug("the settings of the program cannot be read: %s", error)
        return {}


def with_published(
    config: Mapping[str, Any], *, only_these: bool = False
) -> tuple[dict[str, Any], dict[str, str]]:
    """Combine settings with the values that the program was started with, and return their origins.

    A setting has the origin of a value with the same name if the values are equal; otherwise both are kept,
    that of the program as `started_with.NAME`. `only_these` leaves out all other values.
    """
    resolved = {name.replace("-", "_"): entry for name, entry in resolved_config().items()}
    values, origins = dict(config), {}
    for name, entry in resolved.items():
        if only_these and name not in config:
            continue
        value = entry.get("value")
        # An option of the program may have the name of a setting that means something else.
        path = f"started_with.{name}" if name in config and config[name] != value else name
        values[path], origins[path] = value, str(entry.get("origin", ""))
    return values, origins


def _in_variables(frame: FrameType | None) -> dict[str, Any]:
    """Return the settings in the variables of the functions that are being executed, innermost first.

    These are every `argparse.Namespace`, and every dataclass in a variable such as `args` or `config`. The
    settings of one of them are returned as they are, those of several by the names of the variables.
    """
    found: dict[str, Any] = {}
    while frame is not None:
        if _is_of_user(frame):
            for name, value in _candidates(frame):
                if not any(value is other for other in found.values()):
                    found.setdefault(name, value)
        frame = frame.f_back
    described = {name: plain(settings_of(value)) for name, value in found.items()}
    if len(described) == 1:
        (settings,) = described.values()
        return dict(settings)
    return described


def _candidates(frame: FrameType) -> Iterator[tuple[str, Any]]:
    variables = dict(frame.f_locals)
    owner = variables.get("self")
    if owner is not None and type(owner).__module__.partition(".")[0] != "flodl":
        variables |= getattr(owner, "__dict__", {})
    for name, value in variables.items():
        is_settings = is_dataclass(value) and not isinstance(value, type) and name.lower() in _NAMES
        if isinstance(value, Namespace) or is_settings:
            yield name, value


def _is_of_user(frame: FrameType) -> bool:
    """Return whether a frame runs code of the user, not that of flodl, Python or an installed package."""
    is_own = str(frame.f_globals.get("__name__", "")).partition(".")[0] == "flodl"
    return not is_own and is_user_file(frame.f_code.co_filename)

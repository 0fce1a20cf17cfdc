"""The settings of the user: passed to the trainer, or found in the program that creates it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import FrameType
from typing import Any

from flodl.core import TrainError
from flodl.core.environment import resolved_config
from flodl.core.plain import plain, settings_of

# The variables whose dataclasses are settings; an argparse.Namespace is, whatever its name.
_NAMES = frozenset(
    {"args", "arguments", "cfg", "conf", "config", "flags", "hparams", "opt", "options", "params", "settings"}
)


def user_settings(config: Any, frame: FrameType | None) -> dict[str, Any]:
    """Return the settings that were passed or, without any, those found in the variables of the program.

    Those that `flodl.cli.Args` has published are recorded anyway.
    """
    if config is not None:
        return given_settings(config)
    published = {name.replace("-", "_").partition(".")[0] for name in resolved_config()}
    return {name: value for name, value in found_settings(frame).items() if name not in published}


def given_settings(config: Any) -> dict[str, Any]:
    """Return the settings that were passed: a dictionary, a namespace or a dataclass.

    >>> given_settings(Namespace(width=64, lr=0.1))
    {'width': 64, 'lr': 0.1}
    """
    found = settings_of(config)
    if found is None:
        raise TrainError(
            f"config={config!r:.80}. Pass a dictionary, a dataclass or the result of parser.parse_args()."
        )
    settings: dict[str, Any] = plain(found)
    return settings


def found_settings(frame: FrameType | None) -> dict[str, Any]:
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
    """Return whether a frame runs code of the user, not that of flodl or an installed package."""
    file = frame.f_code.co_filename
    is_own = str(frame.f_globals.get("__name__", "")).partition(".")[0] == "flodl"
    return not is_own and "site-packages" not in file and "dist-packages" not in file

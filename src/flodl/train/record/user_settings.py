"""The settings of the user: passed to the trainer, or found in the program that creates it."""

from __future__ import annotations

from types import FrameType
from typing import Any

from flodl.core import TrainError
from flodl.core.plain import plain, settings_of
from flodl.monitor.run_settings.found import found_settings


def user_settings(config: Any, frame: FrameType | None) -> dict[str, Any]:
    """Return the settings that were passed or, without any, those found in the variables of the program.

    Those that `flodl.cli.Args` has published are recorded anyway.
    """
    if config is not None:
        return given_settings(config)
    return found_settings(frame)


def given_settings(config: Any) -> dict[str, Any]:
    """Return the settings that were passed: a dictionary, a namespace or a dataclass.

    >>> from argparse import Namespace
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

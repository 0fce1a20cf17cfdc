"""The state of the update check, stored in the user's settings file."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flodl.core import environment

from .releases import is_release

INTERVAL_S = 24 * 60 * 60
_KEY = "update_check"


class UnreadableSettings(Exception):
    """The settings file exists but cannot be parsed, so the user's choice is unknown."""


@dataclass(frozen=True)
class State:
    """The settings of the update check; `last_check` is in seconds since 1970."""

    enabled: bool = True
    last_check: int = 0
    latest_known: dict[str, str] = field(default_factory=dict)
    first_run_seen: bool = False

    def is_due(self) -> bool:
        """Return whether the last check is a day old, or in the future because the clock was wrong."""
        return not 0 <= time.time() - self.last_check < INTERVAL_S


def state_file() -> Path:
    """Return the path of the user's settings file without creating it."""
    if sys.platform == "win32":
        root = Path(environment.app_data_text() or Path.home() / "AppData" / "Roaming")
    elif sys.platform == "darwin":
        root = Path.home() / "Library" / "Application Support"
    else:
        named = Path(environment.config_root_text() or "")
        root = named if named.is_absolute() else Path.home() / ".config"
    return root / "flodl" / "config.json"


def load(file: Path) -> State:
    """Read the state; a missing file means the defaults. Raise if the file cannot be parsed."""
    return _state(_settings(file).get(_KEY, {}))


def update(file: Path, **changes: Any) -> None:
    """Change the state in the file, and keep everything else in it.

    Raise without writing if the file cannot be parsed: the user may have disabled the check there.
    """
    from flodl.core.files import write_atomic

    settings = _settings(file)
    before = settings.get(_KEY, {})
    state = replace(_state(before), **changes)
    merged = {**(before if isinstance(before, dict) else {}), **asdict(state)}
    write_atomic(file, json.dumps({**settings, _KEY: merged}, indent=2) + "\n")


def _settings(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except json.JSONDecodeError as error:
        raise UnreadableSettings(f"{file}:{error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError):
        raise UnreadableSettings(f"{file}: not valid JSON") from None
    if not isinstance(found, dict):
        raise UnreadableSettings(f"{file}: expected a JSON object, which begins with {{")
    return found


def _state(section: Any) -> State:
    if not isinstance(section, dict):
        return State(enabled=section is True)
    seconds, known = section.get("last_check", 0), section.get("latest_known", {})
    usable = type(seconds) in (int, float) and 0 <= seconds < 1e12
    return State(
        # Any value other than true disables the check.
        enabled=section.get("enabled", True) is True,
        last_check=int(seconds) if usable else 0,
        latest_known=_releases(known) if isinstance(known, dict) else {},
        first_run_seen=section.get("first_run_seen") is True,
    )


def _releases(known: dict[str, Any]) -> dict[str, str]:
    return {name: version for name, version in known.items() if is_release(version)}

"""Every environment variable that flodl reads, in one place.

| variable                | meaning                                                                         |
| ----------------------- | ------------------------------------------------------------------------------- |
| `FLODL_VERBOSITY`       | 0–4 or quiet, normal, verbose, debug, trace: how much flodl prints              |
| `FLODL_DATA`            | where data sets are kept; `~/.cache/flodl/data` without it                      |
| `FLODL_HOME`            | where builds of torch and libtorch are kept; `~/.flodl` without it              |
| `NO_COLOR`              | not empty: no colour in the terminal                                            |
| `FORCE_COLOR`           | not empty: colour also where the output is no terminal                          |
| `FLODL_COLOR`           | always or never: what `--ansi` or `--no-ansi` of `fdl` said, for its children   |
| `FDL_ENV`               | the overlay of fdl.yml to use, as with `--env`                                  |
| `FLODL_RESOLVED_CONFIG` | what a run was started with: every value and its origin, as JSON or a JSON file |
| `FLODL_MONITOR`         | 1: a Trainer shows its live page by itself, as with `fdl run … --monitor`       |
| `FDL_PROJECT_ROOT`      | in a container: where the project is mounted                                    |
| `FDL_NO_UPDATE_CHECK`   | set, to anything: `fdl` does not look for a newer flodl                         |
| `CI`                    | the same; and not 0 or false: lines of text in place of a bar that moves        |
| `XDG_CONFIG_HOME`       | where the settings of a user are kept; `~/.config` without it                   |
| `APPDATA`               | the same, on Windows                                                            |
| `PATH`                  | where commands are looked up                                                    |
| `VIRTUAL_ENV`           | the active virtual environment, whose Python runs the commands of a project     |
| `CONDA_PREFIX`          | the same, of conda                                                              |

An option of a script may name further variables (`option(env=…)`); they are asked for by that name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

RESOLVED_CONFIG = "FLODL_RESOLVED_CONFIG"
MONITOR = "FLODL_MONITOR"
PROJECT_ROOT = "FDL_PROJECT_ROOT"
NO_UPDATE_CHECK = "FDL_NO_UPDATE_CHECK"


def verbosity_text() -> str | None:
    """Give the raw text of `FLODL_VERBOSITY`, or nothing when it is not set."""
    return os.environ.get("FLODL_VERBOSITY")


def colour_wanted() -> bool | None:
    """Say whether to print in colour; None leaves it to whether the output is a terminal.

    A flag of `fdl` comes first, then `NO_COLOR`, then `FORCE_COLOR`.
    """
    flag = {"always": True, "never": False}.get(os.environ.get("FLODL_COLOR") or "")
    if flag is not None:
        return flag
    if os.environ.get("NO_COLOR"):
        return False
    return True if os.environ.get("FORCE_COLOR") else None


def colour_refused() -> bool:
    """Say whether the environment asks for plain text."""
    return colour_wanted() is False


def data_root_text() -> str | None:
    """Give the folder that `FLODL_DATA` names, or nothing when it is not set or empty."""
    return os.environ.get("FLODL_DATA") or None


def home_text() -> str | None:
    """Give the raw text of `FLODL_HOME`, or nothing when it is not set."""
    return os.environ.get("FLODL_HOME")


def overlay_name() -> str:
    """Give the overlay that `FDL_ENV` names, or nothing."""
    return os.environ.get("FDL_ENV") or ""


def monitor_wanted() -> bool:
    """Say whether a run should show a live page where its script leaves that open."""
    return (os.environ.get("FLODL_MONITOR") or "0") != "0"


def flags_said() -> dict[str, str]:
    """Give the variables by which flags of `fdl` reach the programs that it starts; those that are set."""
    said = {
        "FLODL_VERBOSITY": os.environ.get("FLODL_VERBOSITY"),
        "FLODL_COLOR": os.environ.get("FLODL_COLOR"),
        "NO_COLOR": os.environ.get("NO_COLOR"),
        "FLODL_MONITOR": os.environ.get("FLODL_MONITOR"),
    }
    return {name: value for name, value in said.items() if value}


def update_check_refused() -> bool:
    """Say whether `fdl` may not look for a newer flodl; set to nothing at all still counts as set."""
    marks = (os.environ.get("FDL_NO_UPDATE_CHECK"), os.environ.get("CI"))
    return any(mark is not None for mark in marks)


def on_build_server() -> bool:
    """Say whether this runs on a build server, whose terminal is a log that people read later."""
    return (os.environ.get("CI") or "0").lower() not in ("0", "false")


def config_root_text() -> str | None:
    """Give the folder that `XDG_CONFIG_HOME` names, or nothing when it is not set or empty."""
    return os.environ.get("XDG_CONFIG_HOME") or None


def app_data_text() -> str | None:
    """Give the folder that `APPDATA` names, or nothing when it is not set or empty."""
    return os.environ.get("APPDATA") or None


def value_of(name: str) -> str:
    """Give the value of a variable that an option names; empty counts as not set."""
    return os.environ.get(name, "")


def report(names: Iterable[str]) -> dict[str, str | None]:
    """Give these variables as they are, None where one is not set: to show them, not to act on them."""
    return {name: os.environ.get(name) for name in names}


def search_path() -> str:
    """Give the folders in which commands are looked up."""
    return os.environ.get("PATH") or ""


def active_environment() -> str:
    """Give the folder of the active virtual environment, or nothing."""
    return os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX") or ""


def resolved_config() -> dict[str, dict[str, Any]]:
    """Give what this run was started with, `{name: {"value": …, "origin": "fdl.yml:12"}}`; empty if unknown.

    `fdl` leaves it for the programs that it starts, `flodl.cli.Args` for the rest of its process.
    """
    import json
    from pathlib import Path

    text = os.environ.get("FLODL_RESOLVED_CONFIG") or ""
    root = os.environ.get("FDL_PROJECT_ROOT") or ""
    try:
        if not text.startswith("{") and (text or root):
            text = Path(text or f"{root}/.fdl/resolved.json").read_text(encoding="utf-8")
        table = json.loads(text or "{}")
    except (OSError, ValueError):
        return {}
    usable = isinstance(table, dict) and all(isinstance(entry, dict) for entry in table.values())
    return table if usable else {}

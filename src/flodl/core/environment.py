"""Every environment variable that flodl reads, in one place.

| variable                | meaning                                                                         |
| ----------------------- | ------------------------------------------------------------------------------- |
| `FLODL_VERBOSITY`       | how much flodl prints: 0 to 4, or quiet, normal, verbose, debug, trace          |
| `FLODL_DATA`            | the folder for datasets; default `~/.cache/flodl/data`                          |
| `FLODL_HOME`            | the folder for builds of torch and libtorch; default `~/.flodl`                 |
| `NO_COLOR`              | if not empty: no color in the terminal                                          |
| `FORCE_COLOR`           | if not empty: color even if the output is not a terminal                        |
| `FLODL_COLOR`           | always or never: `--ansi` or `--no-ansi` of `fdl`, for the programs it starts    |
| `FDL_ENV`               | the overlay of fdl.yml to use, as with `--env`                                  |
| `FLODL_RESOLVED_CONFIG` | the settings of a run: every value and its origin, as JSON or a JSON file       |
| `FLODL_MONITOR`         | 1: a Trainer serves its live page, as with `fdl run … --monitor`                |
| `FLODL_LAUNCH`          | where ranks run, as JSON: set by `fdl launch` for the program that it starts     |
| `FLODL_LAUNCH_USED`     | a file that a Trainer creates when it uses the ranks of `fdl launch`             |
| `FDL_PROJECT_ROOT`      | in a container: where the project is mounted                                    |
| `FDL_NO_UPDATE_CHECK`   | if set, even to an empty string: `fdl` does not look for a newer flodl          |
| `CI`                    | the same; and unless 0 or false: lines of text instead of a progress bar        |
| `COMP_WORDS`            | the command line, from a completion script of click                             |
| `COMP_CWORD`            | the position in it                                                              |
| `XDG_CONFIG_HOME`       | the folder for user settings; default `~/.config`                               |
| `APPDATA`               | the same on Windows                                                             |
| `CUDA_HOME`             | the CUDA toolkit for `fdl libtorch build`                                       |
| `SHELL`                 | the user's shell, for `fdl autocomplete`                                        |
| `ZDOTDIR`               | the folder of the startup files of zsh; default `~`                             |
| `PATH`                  | where commands are looked up                                                    |
| `VIRTUAL_ENV`           | the active virtual environment, whose Python runs the commands of a project     |
| `CONDA_PREFIX`          | the same for conda                                                              |
| `TORCHINDUCTOR_FORCE_DISABLE_CACHES` | 1: torch's compiler has no cache                                   |

Options of a script may name further variables (`option(env=…)`), which are read by that name. The variables
of torchrun are listed in `TORCHRUN`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

RESOLVED_CONFIG = "FLODL_RESOLVED_CONFIG"
MONITOR = "FLODL_MONITOR"
# Written, not read: which rank of a run a process is, for the user's code in it.
RANK, WORLD_SIZE = "FLODL_RANK", "FLODL_WORLD_SIZE"
PROJECT_ROOT = "FDL_PROJECT_ROOT"
LAUNCH, LAUNCH_USED = "FLODL_LAUNCH", "FLODL_LAUNCH_USED"
# What torchrun tells the processes that it starts.
TORCHRUN = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
)
NO_UPDATE_CHECK = "FDL_NO_UPDATE_CHECK"
_MAX_CONFIG_BYTES = 1 << 24


def verbosity_text() -> str | None:
    """Return the raw text of `FLODL_VERBOSITY`, or None if it is not set."""
    return os.environ.get("FLODL_VERBOSITY")


def color_setting() -> bool | None:
    """Return whether to print in color, or None to print in color only on a terminal.

    A flag of `fdl` comes first, then `NO_COLOR`, then `FORCE_COLOR`.
    """
    flag = {"always": True, "never": False}.get(os.environ.get("FLODL_COLOR") or "")
    if flag is not None:
        return flag
    if os.environ.get("NO_COLOR"):
        return False
    return True if os.environ.get("FORCE_COLOR") else None


def color_disabled() -> bool:
    """Return whether the environment asks for plain text."""
    return color_setting() is False


def data_root_text() -> str | None:
    """Return the folder that `FLODL_DATA` names, or None if it is not set or empty."""
    return os.environ.get("FLODL_DATA") or None


def home_text() -> str | None:
    """Return the raw text of `FLODL_HOME`, or None if it is not set."""
    return os.environ.get("FLODL_HOME")


def overlay_name() -> str:
    """Return the overlay that `FDL_ENV` names, or an empty string."""
    return os.environ.get("FDL_ENV") or ""


def monitor_requested() -> bool:
    """Return whether a run whose script does not mention a monitor should serve a live page."""
    return (os.environ.get("FLODL_MONITOR") or "0") != "0"


def launch_text() -> str:
    """Return where `fdl launch` wants ranks to run, as JSON, or an empty string."""
    return os.environ.get("FLODL_LAUNCH") or ""


def note_launch_used() -> None:
    """Tell `fdl launch`, if it started this program, that a Trainer uses its ranks."""
    path = os.environ.get("FLODL_LAUNCH_USED")
    if path and os.path.isdir(os.path.dirname(path)):
        with open(path, "ab"):
            pass


def torchrun_variables() -> dict[str, str] | None:
    """Return what torchrun tells this process, or None if it did not start it."""
    found = {name: os.environ.get(name) or "" for name in TORCHRUN}
    return found if found["TORCHELASTIC_RUN_ID"] and found["RANK"] else None


def without_torchrun() -> dict[str, str]:
    """Return the environment for a program that is not a rank of torchrun."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in TORCHRUN and not name.startswith("TORCHELASTIC_")
    }


def child_variables(launch: str) -> dict[str, str]:
    """Return the environment for a program that runs elsewhere, with the place of its ranks."""
    return {**os.environ, LAUNCH: launch}


def inherited_flags() -> dict[str, str]:
    """Return the variables, as far as they are set, that pass flags of `fdl` to the programs it starts."""
    flags = {
        "FLODL_VERBOSITY": os.environ.get("FLODL_VERBOSITY"),
        "FLODL_COLOR": os.environ.get("FLODL_COLOR"),
        "NO_COLOR": os.environ.get("NO_COLOR"),
        "FLODL_MONITOR": os.environ.get("FLODL_MONITOR"),
    }
    return {name: value for name, value in flags.items() if value}


def update_check_disabled() -> bool:
    """Return whether `fdl` must not look for a newer flodl; a variable set to an empty string counts."""
    marks = (os.environ.get("FDL_NO_UPDATE_CHECK"), os.environ.get("CI"))
    return any(mark is not None for mark in marks)


def running_in_ci() -> bool:
    """Return whether this process runs in CI, where the output is a log that people read later."""
    return (os.environ.get("CI") or "0").lower() not in ("0", "false")


def config_root_text() -> str | None:
    """Return the folder that `XDG_CONFIG_HOME` names, or None if it is not set or empty."""
    return os.environ.get("XDG_CONFIG_HOME") or None


def app_data_text() -> str | None:
    """Return the folder that `APPDATA` names, or None if it is not set or empty."""
    return os.environ.get("APPDATA") or None


def cuda_home_text() -> str | None:
    """Return the folder that `CUDA_HOME` names, or None if it is not set or empty."""
    return os.environ.get("CUDA_HOME") or None


def shell_text() -> str:
    """Return the user's shell, or an empty string if it is not set."""
    return os.environ.get("SHELL") or ""


def zsh_folder_text() -> str | None:
    """Return the folder that `ZDOTDIR` names, or None if it is not set or empty."""
    return os.environ.get("ZDOTDIR") or None


def typed_line() -> tuple[str | None, str]:
    """Return the command line that is being completed, or None, and the position in it."""
    return os.environ.get("COMP_WORDS"), os.environ.get("COMP_CWORD") or ""


def completion_requested() -> bool:
    """Return whether a shell may be asking for completions: a variable such as `_FDL_COMPLETE` is set."""
    return any(name.startswith("_") and name.endswith("_COMPLETE") for name in os.environ)


def value_of(name: str) -> str:
    """Return the value of a variable that an option names, or an empty string if it is not set."""
    return os.environ.get(name, "")


def report(names: Iterable[str]) -> dict[str, str | None]:
    """Return the values of these variables for display, with None for those that are not set."""
    return {name: os.environ.get(name) for name in names}


def search_path() -> str:
    """Return the value of `PATH`."""
    return os.environ.get("PATH") or ""


def active_environment() -> str:
    """Return the folder of the active virtual environment, or an empty string."""
    return os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX") or ""


def resolved_config() -> dict[str, dict[str, Any]]:
    """Return the settings of this run as `{name: {"value": …, "origin": "fdl.yml:12"}}`; empty if unknown.

    `fdl` sets them for the programs that it starts, `flodl.cli.Args` for the rest of its process.
    """
    import json

    from .files import read_limited

    text = os.environ.get("FLODL_RESOLVED_CONFIG") or ""
    root = os.environ.get("FDL_PROJECT_ROOT") or ""
    try:
        if not text.startswith("{") and (text or root):
            path = text or f"{root}/.fdl/resolved.json"
            text = read_limited(path, max_bytes=_MAX_CONFIG_BYTES).decode()
        table = json.loads(text or "{}")
    except (OSError, ValueError, RecursionError):
        return {}
    usable = isinstance(table, dict) and all(isinstance(entry, dict) for entry in table.values())
    return table if usable else {}


def announce_rank(rank: int, world_size: int) -> None:
    """Tell the code in this process which rank it runs in."""
    os.environ[RANK], os.environ[WORLD_SIZE] = str(rank), str(world_size)


def is_compiler_cache_disabled() -> bool:
    """Return whether torch's compiler was asked not to use its cache on disk."""
    return os.environ.get("TORCHINDUCTOR_FORCE_DISABLE_CACHES") == "1"

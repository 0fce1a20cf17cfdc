"""The update notice at the end of a command, and the start of the daily background lookup."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import click

import flodl
from flodl.cli.container import inside_container
from flodl.core import environment, log

from . import state
from .releases import PACKAGE, is_newer


def mention_updates() -> None:
    """Print a notice if a newer flodl is known, and start a background lookup once a day."""
    if environment.update_check_disabled() or not log.enabled(log.Verbosity.NORMAL):
        return
    if inside_container() or not _is_released():
        return
    file = state.state_file()
    try:
        known = state.load(file)
    except state.UnreadableSettings as error:
        _print(f"{error}. fdl does not check for updates or write to the file until this is fixed.")
        return
    if not known.enabled:
        return
    if not known.first_run_seen:
        # Save before printing: where saving fails, the disclosure would be printed by every command.
        state.update(file, first_run_seen=True)
        _print(_disclosure(file))
        return
    latest = known.latest_known.get(PACKAGE, "")
    if is_newer(latest, than=flodl.__version__):
        _print(
            f"{PACKAGE} {latest} is available; this is {flodl.__version__}. To update:\n  {_update_command()}"
        )
    if known.is_due():
        # Save before the lookup: if the index cannot be reached, try again tomorrow, not after each command.
        state.update(file, last_check=int(time.time()))
        _start_lookup(file.parent)


def _is_released() -> bool:
    """Return whether this flodl was installed from a release; the version of a checkout means nothing.

    pip writes metadata next to a package that it installs, and `direct_url.json` if it was built from a
    folder or a repository.
    """
    metadata = Path(flodl.__file__).parents[1] / f"flodl-{flodl.__version__}.dist-info"
    if not metadata.is_dir():
        return False
    origin = metadata / "direct_url.json"
    text = origin.read_text(encoding="utf-8") if origin.exists() else ""
    return "dir_info" not in text and "vcs_info" not in text


def _disclosure(file: Path) -> str:
    off = '{"update_check": {"enabled": false}}'
    return (
        f"From now on, fdl checks once a day whether a newer {PACKAGE} is available: in the background, pip\n"
        f"queries its configured package index (pip index versions {PACKAGE}). Nothing else is sent.\n"
        f"To turn this off, set FDL_NO_UPDATE_CHECK=1, or write {off}\n"
        f"to {file}. This message appears only once."
    )


def _update_command() -> str:
    words = [sys.executable, "-m", "pip", "install", "--upgrade", PACKAGE]
    if os.name == "nt":
        from subprocess import list2cmdline

        return list2cmdline(words)
    import shlex

    return shlex.join(words)


def _print(text: str) -> None:
    click.echo(click.style(text, dim=True), err=True, color=environment.color_setting())


def _start_lookup(folder: Path) -> None:
    """Start the background process without waiting for it.

    It runs in the settings folder, so that the user's folder can be removed meanwhile. -P keeps the working
    directory off its path, so that the user's modules never shadow those of Python.
    """
    import subprocess  # needed once a day: other commands should not pay for the import

    detached: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        detached = {"creationflags": subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP}
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "flodl.cli.updates.lookup"],
        cwd=folder,
        env={**os.environ, environment.NO_UPDATE_CHECK: "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **detached,
    )
    child.returncode = 0  # or Python would warn at exit that the child is still running

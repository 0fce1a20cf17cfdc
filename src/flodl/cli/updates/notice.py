"""What a command says about updates when it has ended, and how the next answer is asked for."""

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
    """Say whether there is a newer flodl, as far as is known, and have that looked up once a day."""
    if environment.update_check_refused() or not log.enabled(log.Verbosity.NORMAL):
        return
    if inside_container() or not _is_released():
        return
    file = state.state_file()
    try:
        known = state.load(file)
    except state.UnreadableSettings as mistake:
        _say(f"{mistake}. Until that is mended, fdl does not look for updates and leaves the file as it is.")
        return
    if not known.enabled:
        return
    if not known.first_run_seen:
        # Written before it is said: where that is not possible, it would be said again and again.
        state.update(file, first_run_seen=True)
        _say(_disclosure(file))
        return
    latest = known.latest_known.get(PACKAGE, "")
    if is_newer(latest, than=flodl.__version__):
        _say(
            f"{PACKAGE} {latest} is available; this is {flodl.__version__}. To update:\n  {_update_command()}"
        )
    if known.is_due():
        # Before the answer: an index that cannot be reached is tried again tomorrow, not at the next command.
        state.update(file, last_check=int(time.time()))
        _ask(file.parent)


def _is_released() -> bool:
    """Say whether this flodl was installed from a release: of a checkout, the number says nothing.

    What pip writes down about a package is not beside one that runs from its sources, and it tells of one
    that was built from a folder or a repository.
    """
    facts = Path(flodl.__file__).parents[1] / f"flodl-{flodl.__version__}.dist-info"
    if not facts.is_dir():
        return False
    origin = facts / "direct_url.json"
    text = origin.read_text(encoding="utf-8") if origin.exists() else ""
    return "dir_info" not in text and "vcs_info" not in text


def _disclosure(file: Path) -> str:
    off = '{"update_check": {"enabled": false}}'
    return (
        f"From now on, fdl looks once a day whether there is a newer {PACKAGE}: in the background, pip asks\n"
        f"the package index that it is set up for (pip index versions {PACKAGE}). Nothing else is sent.\n"
        f"To turn this off, set FDL_NO_UPDATE_CHECK=1, or write {off}\ninto {file}. This is said once."
    )


def _update_command() -> str:
    words = [sys.executable, "-m", "pip", "install", "--upgrade", PACKAGE]
    if os.name == "nt":
        from subprocess import list2cmdline

        return list2cmdline(words)
    import shlex

    return shlex.join(words)


def _say(words: str) -> None:
    click.echo(click.style(words, dim=True), err=True, color=environment.colour_wanted())


def _ask(folder: Path) -> None:
    """Start the process that asks, and forget it.

    It starts in the folder of the settings, and -P keeps that off its path: a module of the user's project
    must not be taken for one of Python's, and the folder that a process stands in cannot always be removed.
    """
    import subprocess  # once a day: any other command should not pay for it

    detached: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        detached = {"creationflags": subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP}
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "flodl.cli.updates.asking"],
        cwd=folder,
        env={**os.environ, environment.NO_UPDATE_CHECK: "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **detached,
    )
    child.returncode = 0  # or Python would complain, as this process ends, that nobody waited

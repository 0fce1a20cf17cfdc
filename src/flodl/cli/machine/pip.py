"""Run pip, report its progress, and explain its failures."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from flodl.core.errors import SetupError

PIP_FLAGS = ("--no-input", "--disable-pip-version-check")

# (pattern in the output of pip, cause and what to do). The first match explains the failure.
_CAUSES = (
    (
        r"Could not resolve host|unable to access '",
        "the repository of torch cannot be reached. Check network and proxy, or pass a checkout with "
        "--source DIR",
    ),
    (
        r"Killed signal|signal 9|out of memory|cannot allocate memory",
        "there was not enough memory. Run the command again with fewer --jobs; finished files are kept",
    ),
    (
        r"No space left|Errno 28|disk quota",
        "the disk is full. Free some space, or set FLODL_HOME to a folder on a different disk",
    ),
    (
        r"externally-managed-environment",
        "this Python belongs to the system. Omit --here, so that fdl setup creates a separate environment",
    ),
    (
        r"Permission denied|Errno 13|Read-only file system|Access is denied",
        "a folder is not writable. Set FLODL_HOME to a different one",
    ),
    (
        r"name resolution|getaddrinfo|NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError"
        r"|unreachable|Connection (?:refused|reset|aborted)|CERTIFICATE_VERIFY",
        "the package index cannot be reached. Check network and proxy, or pass a mirror with --index-url",
    ),
    (
        r"No matching distribution|Could not find a version|is not a supported wheel|Requires-Python",
        "the package index has no package for this Python and system. Try a different build or Python",
    ),
    (
        r"ensurepip",
        "this Python cannot create environments. On Debian and Ubuntu: sudo apt install python3-venv",
    ),
)


@dataclass(frozen=True)
class Step:
    """One command with a title."""

    title: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Sources:
    """Where wheels come from; by default, the indexes of pip and PyTorch."""

    index_url: str | None = None
    find_links: str | None = None

    def arguments(self, default: str | None = None) -> tuple[str, ...]:
        """Return pip's options; `default` is the index to use if the user specified no source."""
        found: list[str] = []
        if self.find_links:
            found += ["--find-links", self.find_links]
        index = self.index_url or (None if self.find_links else default)
        if index:
            found += ["--index-url", index]
        return tuple(found)


def download_progress(line: str) -> str:
    """Return what to print for a line of pip's output: downloads only."""
    words = line.split()
    is_shown = words[1:] and words[0] in ("Downloading", "Processing")
    return f"    {' '.join(words[:4])}" if is_shown else ""


def run(
    step: Step,
    log: Path,
    echo: Callable[[str], None],
    *,
    progress: Callable[[str], str] = download_progress,
) -> None:
    """Run one step: write its output to the log and its progress to `echo`, and raise if it fails."""
    echo(step.title)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(step.command)}\n")
    code = _run_and_log(step.command, log, echo, progress)
    if code:
        raise SetupError(f"{step.title}: failed with code {code}.\n{_explanation(log)}\nFull log: {log}")


def _run_and_log(
    command: Sequence[str], log: Path, echo: Callable[[str], None], progress: Callable[[str], str]
) -> int:
    if command[1:2] == ("-m",):  # not from the working directory
        command = [command[0], "-P", *command[1:]]
    if sys.stderr.isatty() and "pip" in command:
        # On a terminal, show pip's own progress and let pip write the log.
        return subprocess.run([*command, "--log", str(log)], stdout=sys.stderr).returncode
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "errors": "replace"}
    with log.open("a", encoding="utf-8") as file, subprocess.Popen(command, text=True, **pipes) as child:
        try:
            for line in child.stdout or ():
                file.write(line)
                if shown := progress(line):
                    echo(shown)
            return child.wait()
        finally:
            child.kill()  # still running only after an interrupt


def _explanation(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    shown = "".join(f"    {line}\n" for line in lines[-8:])
    cause = explain(text)
    return shown + (f"Likely cause: {cause}." if cause else "Try again, or read the log.")


def explain(text: str) -> str:
    """Return the likely cause of a failure of pip and what to do, or an empty string if it is unknown.

    >>> explain("OSError: [Errno 28] No space left on device")
    'the disk is full. Free some space, or set FLODL_HOME to a folder on a different disk'
    """
    for pattern, cause in _CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            return cause
    return ""


def flodl_requirement() -> tuple[str, ...]:
    """Return pip's arguments for the running flodl: its checkout, its file, or its version."""
    try:
        found = distribution("flodl")
    except PackageNotFoundError:
        raise SetupError(
            "flodl itself is not installed as a package, so it cannot be installed elsewhere. "
            "Install it with pip, or specify it: fdl setup --flodl REQUIREMENT"
        ) from None
    return _origin(found) or (f"flodl=={found.version}",)


def _origin(found: Distribution) -> tuple[str, ...]:
    """Return where pip installed it from, if that was not an index."""
    try:
        origin = json.loads(found.read_text("direct_url.json") or "{}")
    except ValueError:
        return ()
    url = origin.get("url", "")
    if not url:
        return ()
    parsed = urlparse(url)
    location = url2pathname(parsed.path) if parsed.scheme == "file" else url
    if parsed.scheme == "file" and not Path(location).exists():
        return ()
    return ("--editable", location) if origin.get("dir_info", {}).get("editable") else (location,)

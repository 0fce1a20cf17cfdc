"""Running pip: its exact command lines, its progress, and what its failures mean."""

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

QUIETLY = ("--no-input", "--disable-pip-version-check")

# What pip says, what it means, what to do. The first that is found explains the failure.
_CAUSES = (
    (
        r"No space left|Errno 28|disk quota",
        "the disk is full. Free some space, or name a folder on another disk in FLODL_HOME",
    ),
    (
        r"externally-managed-environment",
        "this Python belongs to the system. Leave --here out: fdl setup then makes an environment of its own",
    ),
    (
        r"Permission denied|Errno 13|Read-only file system|Access is denied",
        "a folder cannot be written to. Name another one in FLODL_HOME",
    ),
    (
        r"name resolution|getaddrinfo|NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError"
        r"|unreachable|Connection (?:refused|reset|aborted)|CERTIFICATE_VERIFY",
        "the package index cannot be reached. Check network and proxy, or name a mirror with --index-url",
    ),
    (
        r"No matching distribution|Could not find a version|is not a supported wheel|Requires-Python",
        "the package index has nothing that fits this Python and this system. Try another build or Python",
    ),
    (
        r"ensurepip",
        "this Python makes no environments. On Debian and Ubuntu: sudo apt install python3-venv",
    ),
)


@dataclass(frozen=True)
class Step:
    """One command line, with words for it."""

    title: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Sources:
    """Where wheels come from; an empty one means the places that pip and PyTorch use by themselves."""

    index_url: str | None = None
    find_links: str | None = None

    def arguments(self, otherwise: str | None = None) -> tuple[str, ...]:
        """Give pip's options; `otherwise` is the index to use where the user named no place."""
        found: list[str] = []
        if self.find_links:
            found += ["--find-links", self.find_links]
        index = self.index_url or (None if self.find_links else otherwise)
        if index:
            found += ["--index-url", index]
        return tuple(found)


def run(step: Step, log: Path, say: Callable[[str], None]) -> None:
    """Run one step; its output goes to the log, larger steps of it to `say`, a failure becomes an error."""
    say(step.title)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(step.command)}\n")
    code = _watch(step.command, log, say)
    if code:
        raise SetupError(f"{step.title}: failed with code {code}.\n{_explanation(log)}\nThe whole log: {log}")


def _watch(command: Sequence[str], log: Path, say: Callable[[str], None]) -> int:
    if sys.stderr.isatty() and "pip" in command:
        # A terminal sees pip's own progress, and pip writes the log.
        return subprocess.run([*command, "--log", str(log)], stdout=sys.stderr).returncode
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "errors": "replace"}
    with log.open("a", encoding="utf-8") as file, subprocess.Popen(command, text=True, **pipes) as child:
        try:
            for line in child.stdout or ():
                file.write(line)
                words = line.split()
                if words[1:] and words[0] in ("Downloading", "Processing"):
                    say(f"    {' '.join(words[:4])}")
            return child.wait()
        finally:
            child.kill()  # only an interrupt finds it alive


def _explanation(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    shown = "".join(f"    {line}\n" for line in lines[-8:])
    meaning = explain(text)
    return shown + (f"Likely cause: {meaning}." if meaning else "Start again, or read the log.")


def explain(text: str) -> str:
    """Name the likely cause of what pip printed, and what to do about it; nothing if it is not known.

    >>> explain("OSError: [Errno 28] No space left on device")
    'the disk is full. Free some space, or name a folder on another disk in FLODL_HOME'
    """
    for pattern, meaning in _CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            return meaning
    return ""


def own_requirement() -> tuple[str, ...]:
    """Give pip's words for the flodl that runs now: its checkout, its file, or its version."""
    try:
        found = distribution("flodl")
    except PackageNotFoundError:
        raise SetupError(
            "flodl itself is not installed as a package, so it cannot be put into another environment. "
            "Install it with pip, or name it: fdl setup --flodl REQUIREMENT"
        ) from None
    return _from_origin(found) or (f"flodl=={found.version}",)


def _from_origin(found: Distribution) -> tuple[str, ...]:
    """Say where pip took it from, if that was not an index."""
    try:
        origin = json.loads(found.read_text("direct_url.json") or "{}")
    except ValueError:
        return ()
    address = origin.get("url", "")
    if not address:
        return ()
    parsed = urlparse(address)
    place = url2pathname(parsed.path) if parsed.scheme == "file" else address
    if parsed.scheme == "file" and not Path(place).exists():
        return ()
    return ("--editable", place) if origin.get("dir_info", {}).get("editable") else (place,)
